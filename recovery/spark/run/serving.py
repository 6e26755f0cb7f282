"""Where the tasks of a run reach its partitions: as files of this host, or on a cluster through the owner's process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recovery.base.addresses import host_and_port
from recovery.base.task_key import task_key
from recovery.config import RecoveryConfig
from recovery.owner.process import OwnerProcess
from recovery.planning.values import Execution
from recovery.spark.clusters import is_cluster
from recovery.storage.seam import PartitionStore

if TYPE_CHECKING:
    from pyspark import SparkContext

ANY = ("0.0.0.0", "::")
"""Addresses to listen at that no task can reach."""


class TaskAccess:
    """The address of a run's partitions for its tasks, and on a cluster the process that answers there.

    The driver itself reaches the partitions as files, also on a cluster.
    """

    def __init__(
        self, context: SparkContext, store: PartitionStore, execution: Execution, scratch: Path, config: RecoveryConfig
    ) -> None:
        """Call it when the execution has begun. scratch: the execution's directory. Raises ConfigurationError if
        nothing can listen at the configured address."""
        self.address = store.address(execution.lease)
        self._owner: OwnerProcess | None = None
        if not is_cluster(context.master):
            return
        settings = context.getConf()
        driver = settings.get("spark.driver.host", "localhost")
        given, port = host_and_port(config.serve_at or ":0")
        bind = given or settings.get("spark.driver.bindAddress", driver)
        count = store.partition_count
        self._owner = OwnerProcess(
            self.address, scratch, task_key(), execution.lease, count, bind=bind.strip("[]"), port=port
        )
        host = driver if bind in ANY else given or driver
        self.address = self._owner.address(host.strip("[]"), deadline_s=config.owner_deadline_s)

    @property
    def owner_pid(self) -> int | None:
        """The number of the owner's process, as long as it runs; None on one host."""
        return None if self._owner is None else self._owner.pid

    def stop(self) -> None:
        """End the owner's process. May be called again."""
        if self._owner is not None:
            self._owner.stop()
