"""Give a store another number of partitions."""
