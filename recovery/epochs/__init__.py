"""Closing an epoch, without Spark."""
