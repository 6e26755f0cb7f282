"""A run without Spark on the driver's host of pretend hosts: DIRECTORY BATCHES PAUSE_S TOKEN_FILE OWNER…"""

import sys
import time
from pathlib import Path

from recovery.errors import RecoveryError
from tests.faults.minirun import MiniRun

NUMBER = 1
"""Of the input."""


def main(directory: str, batches: str, pause_s: str, token_file: str, *owners: str) -> int:
    """Print each micro-batch when it is done; end with the code of the error."""
    try:
        run = MiniRun(
            Path(directory), NUMBER, owners=owners, token_file=token_file, owner_deadline=5, backup_interval=3600,
            snapshot_interval=0,
        )  # fmt: skip
        try:
            while run.next_batch < int(batches):
                run.batch(None)
                print(f"batch {run.next_batch - 1}", flush=True)
                time.sleep(float(pause_s))
        except BaseException:
            run.release()
            raise
        run.finish()
    except RecoveryError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
