"""The owner's process, which the driver of a run starts."""

import sys

from recovery.owner.serving import main

if __name__ == "__main__":
    sys.exit(main())
