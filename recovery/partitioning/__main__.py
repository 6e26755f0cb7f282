"""A process that writes some of the new partitions, which `recovery.partitioning.workers` starts."""

import sys

from recovery.partitioning.worker import main

if __name__ == "__main__":
    sys.exit(main())
