"""Declaring stateful steps."""
