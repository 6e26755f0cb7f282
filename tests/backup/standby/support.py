"""What the tests of standbys share."""

from __future__ import annotations

from pathlib import Path

from recovery.backup.conditional import open_documents
from recovery.backup.lease import Claimant, PublishingLease, claim
from recovery.backup.standby.follow import Follower, FollowResult
from recovery.backup.standby.promote import Promoted, promote
from recovery.base.clock import SystemClock
from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from tests.backup.support import random_id
from tests.stores import Driver, State, problems, state_at


def followed(place: Path | str, directory: Path) -> FollowResult:
    """One look of `recovery follow --once`."""
    with Follower(directory, str(place), SystemClock()) as follower:
        return follower.look()


def promoted(directory: Path, **options: object) -> Promoted:
    """A promotion as the command makes it."""
    return promote(directory, SystemClock(), random_id, **options)


def writer(directory: Path, place: Path | str, *, sync: bool = False) -> PublishingLease:
    """A run on the directory claims the place, as `run --replicate` does."""
    if isinstance(place, Path):
        place.mkdir(exist_ok=True)
    with Driver(directory) as run:
        claimant = Claimant(directory, run.plan.store_id, "flow x", 1, run.execution.number, sync)
        return claim(open_documents(str(place)), claimant, SystemClock(), random_id)


def newest_state(directory: Path) -> tuple[int, State]:
    """The epoch that a run would go on from, and its state."""
    epoch = plan_resume(scan(directory)).resume_epoch - 1
    return epoch, state_at(directory, epoch)


def assert_follows(directory: Path, source: Path) -> None:
    """The directory holds what the source holds, whole, and nothing is left from fetching it."""
    assert problems(directory) == []
    assert newest_state(directory) == newest_state(source)
    names = {path.name for path in directory.iterdir() if not path.name.startswith("part-")}
    assert names <= {"standby.json", "recovery.lock", "lease.json", "restored.json"}
