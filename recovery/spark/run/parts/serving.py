"""Where the tasks of a run reach its partitions: as files of this host, on a cluster through the process beside the
driver, and at owners of other hosts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recovery.base.credentials.task_key import task_key
from recovery.config import RecoveryConfig
from recovery.owner.process import OwnerProcess
from recovery.planning.values import Execution
from recovery.spark.clusters import TaskServing, is_cluster
from recovery.spark.jvm.session import settings_in
from recovery.spark.run.parts.part import Part
from recovery.storage.reach import files_in, with_files_at
from recovery.storage.seam import PartitionStore

if TYPE_CHECKING:
    from pyspark import SparkContext


class TaskAccess(Part):
    """The address of the partitions for tasks; on a cluster, the process that answers for those of this host.

    The driver itself reaches its own partitions as files, also on a cluster.
    """

    name = "task access"

    def __init__(
        self, context: SparkContext, store: PartitionStore, execution: Execution, scratch: Path, config: RecoveryConfig
    ) -> None:
        """Make the object when the execution has begun. scratch: the execution's directory. Raises the errors of
        `TaskServing.start`."""
        self.address = store.address(execution.lease)
        self._owner: OwnerProcess | None = None
        if is_cluster(context.master):
            # Partitions at owners of other hosts are reached there.
            here = files_in(self.address)
            if here is not None:
                make = partial(OwnerProcess, here, scratch, task_key(), execution.lease, store.partition_count)
                self._owner, address = TaskServing.of(config).start(settings_in(context), make)
                self.address = with_files_at(self.address, address)

    def end(self, error: BaseException | None) -> None:
        """End the owner's process."""
        if self._owner is not None:
            self._owner.stop()
