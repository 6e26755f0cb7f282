"""What `recovery plan` and the pages of `recovery ui` say of the next run, as JSON values."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recovery.base.wording import moment_text
from recovery.errors import RecoveryError
from recovery.operational.backends.owned import origins_of
from recovery.operational.steps.input_again import InputAgain, input_again
from recovery.planning.explain import Explanation, explain
from recovery.planning.going_back import discarded
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.planning.values import FoundFile
from recovery.storage.origin import Origin
from recovery.storage.scan import links_of
from recovery.storage.store import Store


class PlanFacts:
    """Where the next run of a store would resume, and why. Reads only.

    files: every found and every missing file, explained. planned: None: no run can resume, and `problem` says why.
    again: the files of this host that the run would read again; None: none, or it is not known.
    """

    def __init__(
        self,
        store: Store,
        found: Sequence[FoundFile],
        *,
        rewind_to: int | None = None,
        known: ResumePlan | None = None,
    ) -> None:
        """found: what `Store.found` returned. rewind_to: the epoch at which the run would begin; None: the newest.
        known: the plan of these very files for a run that begins at the newest epoch."""
        self.store = store
        self.files: tuple[Explanation, ...] = explain(found, moment_text, known)
        self.planned: ResumePlan | None = None
        self.problem: RecoveryError | None = None
        self.again: InputAgain | None = None
        self.origins: Sequence[Origin] = ()
        try:
            is_new = known is None or rewind_to is not None
            planned = plan_resume(found, resume_epoch=rewind_to) if is_new else known
        except RecoveryError as error:
            self.problem = error
            return
        assert planned is not None
        self.planned = planned
        self.origins = origins_of(store)
        # What cannot be read is the run's error, and the plan is of use without this.
        with contextlib.suppress(RecoveryError):
            self.again = input_again(store, planned)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON values; without a plan, the error and the files."""
        directory = self.store.directory
        if self.planned is None:
            assert self.problem is not None
            return {**self.problem.as_json(), "directory": str(directory),
                    "files": [each.as_json(directory) for each in self.files]}  # fmt: skip
        return {
            **planned_json(self.planned, self.files, directory),
            "unused": list(self.store.notes),
            "links": links_of(directory),
            "reads_again": None if self.again is None else self.again.as_json(),
            "origins": [each.as_json() for each in self.origins],
        }


def planned_json(planned: ResumePlan, files: Sequence[Explanation], directory: Path) -> dict[str, Any]:
    """Return where a plan resumes, what it discards, and the role of each file, as JSON values."""
    snapshot, gone = planned.snapshot, discarded(planned)
    verdicts = {v.path: v for v in planned.verdicts}
    return {
        "directory": str(directory),
        "store_id": planned.store_id,
        "flow": planned.flow_id,
        "resume_epoch": planned.resume_epoch,
        "resume_after": planned.resume_epoch - 1,
        "discards": None if gone is None else gone.as_json(),
        "after_batch": snapshot.batch_id if snapshot else None,
        "closed_ms": snapshot.closed_ms if snapshot else None,
        "execution": planned.execution_number,
        "window": list(planned.window),
        "files": [
            {
                **each.as_json(directory),
                "behind": verdicts[each.path].behind,
                "limits": verdicts[each.path].limits,
                "note": verdicts[each.path].note,
            }
            for each in files
        ],
    }
