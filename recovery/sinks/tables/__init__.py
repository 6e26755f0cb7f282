"""What the sinks of table formats, Delta and Iceberg, share."""
