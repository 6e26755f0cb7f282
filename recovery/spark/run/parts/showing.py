"""The pages of a run, which `--ui` asks for: begun before Spark, ended with the run."""

from __future__ import annotations

import sys

from recovery.config import RecoveryConfig
from recovery.spark.run.parts.part import Part
from recovery.storage.store import OwnerAccess
from recovery.ui.beside.process import PagesProcess


class RunPages(Part):
    """The process that serves the pages of a run."""

    name = "pages"

    def __init__(self, config: RecoveryConfig, at: str, access: OwnerAccess) -> None:
        """Start the process. Raises what `PagesProcess` raises."""
        self._process = PagesProcess(config.path, at, access, dict(config.thresholds))
        self._is_over = False

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def ready(self) -> None:
        """Say where the pages are. Raises what `PagesProcess.ready` raises."""
        _say(f"pages at {self._process.ready()}")

    def closed(self) -> None:
        """Say once that the pages have ended: the run goes on without them."""
        ended = None if self._is_over else self._process.ended()
        if ended is not None:
            self._is_over = True
            _say(f"the process of the pages has ended ({ended}); the run goes on. recovery ui DIR shows it again")

    def end(self, error: BaseException | None) -> None:
        """End the process."""
        self._process.stop()


def _say(text: str) -> None:
    print(f"recovery: {text}", file=sys.stderr, flush=True)
