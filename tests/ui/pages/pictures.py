"""Makes the pictures of docs/ui.md: python -m tests.ui.pages.pictures docs/images."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

from recovery.storage.initialize import init_partitions
from tests.report.support import clock, run_epochs
from tests.stores import STEP, Driver
from tests.ui.pages.support import chromium, served

PICTURES = {
    "ui-flow": ("", 830),
    "ui-timeline": ("timeline?limit=100", 640),
    "ui-key": ("key?step=delays&key=JFK", 1010),
    "ui-plan": ("plan?lost=1", 620),
}
"""The address of each picture's page, and its height."""


def history(directory: Path) -> None:
    """A flow that was killed, went back and runs: its last epoch was closed just now."""
    epochs = ((12, None), (16, None), (9, 22), (11, None))
    times = clock(int(time.time() * 1000) - 10_000 * (sum(count for count, _ in epochs) + 2 * len(epochs) + 6))
    for seed, (count, resume_epoch) in enumerate(epochs):
        run_epochs(directory, count, times, resume_epoch=resume_epoch, seed=seed)
    with Driver(directory, (STEP, "sessions", "delays"), started_ms=next(times)) as run:
        for flights, late in ((3, 1), (7, 2), (8, 2), (12, 5)):
            run.apply(900 + flights, {"JFK": json.dumps({"flights": flights, "late": late})}, step="delays")
            requests = run.requests(900 + flights, closed_ms=next(times), floor=max(0, run.epoch - 30))
            run.store.close(run.lease, requests)
            run.epoch += 1


def main(to: Path) -> None:
    """Write all pictures."""
    to = to.resolve()
    with tempfile.TemporaryDirectory() as room, contextlib.chdir(room), chromium() as browser:
        # A relative path, so that no picture has the name of the temporary directory.
        directory = Path("flights")
        init_partitions(directory, 4)
        history(directory)
        with served(directory) as url:
            for name, (path, height) in PICTURES.items():
                tab = browser.new_page(viewport={"width": 1080, "height": height})
                tab.goto(f"{url}flows/flights/{path}")
                tab.screenshot(path=to / f"{name}.png")
                tab.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
