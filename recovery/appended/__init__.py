"""Growing text files as a replayable input: where each file was read to, and the lines between two places.

The parts, in the order a byte passes them; none knows Spark:

- `options`  what the user asked for
- `files`    how directories and bytes are reached: the only module that touches the file system
- `position` how far each file was read, and how the file is recognised again
- `rotation` which names a log rotation gives
- `locate`   which file holds what was read before, whatever it is called now
- `plan`     how far the next batch reads, and how it is cut into tasks
- `source`   the above put together, for the planner and for a task
- `content`  bytes to Arrow record batches
"""
