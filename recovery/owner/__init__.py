"""The owner: the process beside the driver that has deltas open and answers the tasks of other hosts."""
