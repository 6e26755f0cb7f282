"""Growing text files as a replayable input: how far each file was read, and the lines between two positions.

The modules, in the order a byte passes them; none knows Spark:

- `options`  the user's options
- `files`    access to directories and bytes: the only module that touches the file system
- `position` how far each file was read, and how the file is recognised again
- `rotation` which names a log rotation gives
- `locate`   which file holds content read before, whatever its name is now
- `survey`   which files of one look are known, new or lost
- `plan`     how far the next batch reads, and how it is cut into tasks
- `planner`  combines the above
- `reach`    the right bytes for a task, checked as they are read
- `content`  bytes to Arrow record batches
"""
