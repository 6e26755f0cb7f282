"""`recovery run --if-new-input`: end without Spark if there is nothing to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.common import print_json, tell
from recovery.config import RecoveryConfig
from recovery.idle.look import look


def ended_idle(config: RecoveryConfig, facts: Mapping[str, str], *, from_backup: bool, as_json: bool) -> bool:
    """Return whether the run has nothing to do, and has ended; the run history and the user know then. Otherwise print
    why Spark starts. from_backup: the directory is to be restored if it is empty."""
    found = look(config, facts, SystemClock()) if not from_backup else "--from may restore the directory"
    if isinstance(found, str):
        if not as_json:
            tell(one_line(f"--if-new-input: {found}"))
        return False
    if as_json:
        from recovery.spark.run.reporting.events import RunSummary

        summary = RunSummary(found.flow, str(config.path), resume_epoch=found.epoch + 1, resume_after=found.epoch)
        summary.last_epoch, summary.skipped = found.epoch, "no new input"
        print_json(asdict(summary))
    else:
        tell(one_line(
            f"{found.flow}: no new input since epoch {found.epoch}; Spark was not started "
            f"({counted(found.runs, 'such run')} in a row)"
        ))  # fmt: skip
    return True
