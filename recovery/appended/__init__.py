"""Growing text files as a replayable input: where each file was read to, and the lines between two places.

The parts, in the order a byte passes them; none knows Spark:

- `options`  what the user asked for
- `files`    how directories and bytes are reached: the only module that touches the file system
- `position` how far each file was read, and how the file is recognised again
- `rotation` which names a log rotation gives
- `locate`   which file holds what was read before, whatever it is called now
- `survey`   who is who in one look at the directories
- `plan`     how far the next batch reads, and how it is cut into tasks
- `planner`  the above put together
- `reach`    the right bytes for a task, checked as they are read
- `content`  bytes to Arrow record batches
"""
