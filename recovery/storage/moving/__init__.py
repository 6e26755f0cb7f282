"""Partitions that go from one directory to another, by way of the owners of both."""
