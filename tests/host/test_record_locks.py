"""Which process holds a lock on a part of a file."""

from __future__ import annotations

import subprocess
import sys

from recovery.host.record_locks import locked_by


def test_the_holder_of_a_lock(tmp_path):
    """By another process, of these bytes and not of others; a file that is missing has none."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    code = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.lockf(f, fcntl.LOCK_SH, 5, 10); "
    code += "print('held', flush=True); "
    holder = subprocess.Popen([sys.executable, "-c", code + "time.sleep(60)", file], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        assert locked_by(file, 0, 20) == holder.pid
        assert locked_by(file, 20, 20) is None
    finally:
        holder.kill()
        holder.wait()
    assert locked_by(file, 0, 20) is None
    assert locked_by(tmp_path / "none", 0, 1) is None
