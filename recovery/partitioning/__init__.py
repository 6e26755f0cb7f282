"""Another number of partitions for a store."""
