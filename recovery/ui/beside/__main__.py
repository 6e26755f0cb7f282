"""The process of the pages of a run, which the run starts."""

import sys

from recovery.ui.beside.serving import main

if __name__ == "__main__":
    sys.exit(main())
