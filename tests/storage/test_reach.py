"""Addresses of stores, as tasks get them."""

from __future__ import annotations

import os

from recovery.base.credentials.task_key import task_key
from recovery.owner.process import OwnerProcess
from recovery.storage.reach import files_in, reach, with_files_at
from recovery.storage.seam import BatchCount
from tests.stores import KEY, STEP, Driver, SpreadDirectory, pack, run_python


def test_a_worker_without_sqlite_can_import_it():
    """Executors of a cluster have no apsw: only the store at the address decides what is imported."""
    printed = run_python(
        "import sys; sys.modules['apsw'] = None\n"
        "import recovery.storage.reach, recovery.spark.tasks.run_tasks, recovery.spark.tasks.arrow_task\n"
        "print('imported')"
    )
    assert printed.stdout.strip() == "imported"


def test_a_process_has_one_task_key(tmp_path):
    """Forked processes are others."""
    mine = task_key()
    assert mine == task_key()
    assert len(mine) == 32
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, task_key())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) != mine


def test_on_a_cluster_files_of_the_driver_are_reached_through_its_process(make_store):
    """And those of owners where they are; a task sees no difference."""
    places = SpreadDirectory(make_store(3), ((1,), (0,), (2,)))
    try:
        with Driver(places) as run:
            address = run.store.address(run.lease)
            here = files_in(address)
            beside = OwnerProcess(here, run.store.scratch, KEY, run.lease, 3)
            try:
                reached = with_files_at(address, beside.address("127.0.0.1"))
                assert files_in(reached) is None
                task, count = reach(reached, task_key=KEY)
                assert count == 3
                task.apply(STEP, 0, {index: [pack({f"k{index}": "1"})] for index in range(3)}, BatchCount(3, 3))
                wanted = {index: (f"k{index}",) for index in range(3)}
                assert task.read(STEP, 1, wanted) == {index: ["1"] for index in range(3)}
                assert run.store.counts(run.lease, 0).keys == 3
                task.release()
            finally:
                beside.stop()
    finally:
        places.close()
