"""Addresses of stores, as tasks get them."""

from __future__ import annotations

import os

from recovery.base.task_key import task_key
from tests.stores import run_python


def test_a_worker_without_sqlite_can_import_it():
    """Executors of a cluster have no apsw: only the store at the address decides what is imported."""
    printed = run_python(
        "import sys; sys.modules['apsw'] = None\n"
        "import recovery.storage.reach, recovery.spark.tasks.step_task, recovery.spark.tasks.arrow_task\n"
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
