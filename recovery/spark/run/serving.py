"""Where the tasks of a run reach its partitions: as files of this host, or on a cluster through the owner's process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recovery.base.task_key import task_key
from recovery.config import RecoveryConfig
from recovery.owner.process import OwnerProcess
from recovery.planning.values import Execution
from recovery.spark.clusters import Serving, is_cluster
from recovery.storage.seam import PartitionStore

if TYPE_CHECKING:
    from pyspark import SparkContext


class TaskAccess:
    """The address of a run's partitions for its tasks, and on a cluster the process that answers there.

    The driver itself reaches the partitions as files, also on a cluster.
    """

    def __init__(
        self, context: SparkContext, store: PartitionStore, execution: Execution, scratch: Path, config: RecoveryConfig
    ) -> None:
        """Call it when the execution has begun. scratch: the execution's directory. Raises the errors of
        `Serving.start`."""
        self.address = store.address(execution.lease)
        self._owner: OwnerProcess | None = None
        if is_cluster(context.master):
            make = partial(OwnerProcess, self.address, scratch, task_key(), execution.lease, store.partition_count)
            self._owner, self.address = Serving.of(config).start(dict(context.getConf().getAll()), make)

    @property
    def owner_pid(self) -> int | None:
        """The number of the owner's process, as long as it runs; None on one host."""
        return None if self._owner is None else self._owner.pid

    def stop(self) -> None:
        """End the owner's process. May be called again."""
        if self._owner is not None:
            self._owner.stop()
