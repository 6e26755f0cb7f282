"""A store whose chains merge soon, and a place in memory, for the tests of standbys."""

from tests.backup.test_incremental_faults import store, tmp_path

__all__ = ["store", "tmp_path"]
