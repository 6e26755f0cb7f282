"""Rows of partitions in other files: the changes files of backups, and the partitions of a repartitioned store."""
