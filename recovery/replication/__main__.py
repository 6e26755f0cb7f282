"""The shipping process, which the driver of a run starts."""

import sys

from recovery.replication.serving import main

if __name__ == "__main__":
    sys.exit(main())
