"""The places of operational state: a directory, or a bucket."""
