"""`python -m recovery`."""

from recovery.cli import main

main(prog_name="python -m recovery")
