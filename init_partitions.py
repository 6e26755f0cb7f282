"""`python init_partitions.py DIR N`: the same as `python -m recovery init DIR N`."""

import sys

from recovery.cli import main

if __name__ == "__main__":
    main(["init", *sys.argv[1:]], prog_name="init_partitions.py")
