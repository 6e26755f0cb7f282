"""Where the next run would resume, and what a lost partition would mean: the planner's own answer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from recovery.planning.values import FoundFile
from recovery.report.plan import PlanFacts
from recovery.ui.facts.flows import ShownFlow
from recovery.ui.facts.limits import page_of


def plan_facts(
    flow: ShownFlow,
    *,
    lost: Collection[int] = (),
    resume_after: int | None = None,
    after: int | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Return what `plan --json` prints: {"planned": …, "problem": …}, one of them None, with a range of the files.

    lost: the numbers of partitions that the planner does not see, as if their files were gone. resume_after: as of
    `run --resume-after`. after, limit: which `files`; {"next", "file_count"}. The files that are not current come
    first.
    """
    look = flow.look()
    found = [file for file in look.gathered.found if not _is_lost(file, lost)]
    rewind_to = None if resume_after is None else resume_after + 1
    known = look.gathered.plan if len(found) == len(look.gathered.found) else None
    facts = PlanFacts(look.store, found, rewind_to=rewind_to, known=known).as_json()
    files = sorted(facts.pop("files"), key=lambda each: each["role"] == "current")
    rows, following = page_of(files, after, limit)
    failed = "error" in facts
    return flow.answer(look, {
        "planned": None if failed else facts,
        "problem": facts if failed else None,
        "lost": sorted(lost),
        "files": rows,
        "next": following,
        "file_count": len(files),
    })  # fmt: skip


def _is_lost(file: FoundFile, lost: Collection[int]) -> bool:
    return file.description is not None and file.description.index in lost
