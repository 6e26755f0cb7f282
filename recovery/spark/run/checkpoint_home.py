"""Where Spark writes the checkpoint of a run: on this host, or where executors on all hosts reach it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from recovery.base.ids import Lease
from recovery.checkpoint.home import CheckpointHome, LocalHome
from recovery.hadoop.home import HadoopHome
from recovery.places.address import file_system
from recovery.places.hadoop import HadoopFiles


def checkpoint_home(address: str | None, scratch: Path, store_id: str, lease: Lease) -> CheckpointHome:
    """Return the place of an execution's checkpoint. address: where all hosts reach it; None: only this host writes it,
    into `scratch`."""
    found = None if address is None else file_system(address, "scratch_directory")
    if found is None:
        return LocalHome(scratch / "checkpoint")
    system, path = found
    return HadoopHome(HadoopFiles(system), system, Path(path, _name(store_id, lease)), scratch / "checkpoint")


def discard_earlier(address: str | None, store_id: str, leases: Iterable[Lease]) -> None:
    """Remove what executions of this directory left at the address, because they were killed. Raises OSError.

    leases: executions that are known to be of this directory: an execution of a copy of the directory may be under way.
    """
    found = None if address is None else file_system(address, "scratch_directory")
    if found is not None:
        system, path = found
        files = HadoopFiles(system)
        known = {_name(store_id, lease) for lease in leases}
        for name in known.intersection(files.directories(Path(path))):
            files.delete(Path(path, name))


def _name(store_id: str, lease: Lease) -> str:
    return f"recovery-{store_id}-{lease.number}-{lease.id}"
