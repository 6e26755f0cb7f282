"""A process that writes some of the new partitions, which `recovery.stores.workers` starts."""

import sys

from recovery.stores.worker import main

if __name__ == "__main__":
    sys.exit(main())
