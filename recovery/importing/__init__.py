"""Recovery directories of other tools, taken over as recovery partitions."""
