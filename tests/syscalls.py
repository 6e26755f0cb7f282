"""Killing a process at every one of its system calls, or at those that change files, by tracing it. Linux."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable

TRACEME, SYSCALL, SETOPTIONS, SYSCALL_INFO = 0, 24, 0x4200, 0x420E
MARK_CALLS = 1
"""Option without which SYSCALL_INFO says nothing of a call."""
INFO = struct.Struct("=B3xIQQ7Q")
"""What SYSCALL_INFO gives at the entry of a call: operation, processor, instruction, stack, number, six arguments."""
OPENS = {2: 1, 257: 2}
"""open and openat, with the argument that has the flags."""
CHANGES = {
    *(
        1,
        18,
        20,
        40,
        275,
        296,
        326,
        328,
    ),  # write, pwrite64, writev, sendfile, splice, pwritev, copy_file_range …
    *(16, 76, 77, 285),  # ioctl (clones files), truncate, ftruncate, fallocate
    *(74, 75, 162, 277, 306),  # fsync, fdatasync, sync, sync_file_range, syncfs
    *(82, 83, 84, 85, 86, 87, 88, 133),  # rename, mkdir, rmdir, creat, link, unlink, symlink, mknod
    *(258, 259, 263, 264, 265, 266, 316),  # mkdirat, mknodat, unlinkat, renameat, linkat, symlinkat, renameat2
    *(90, 91, 92, 93, 94, 260, 268, 452),  # chmod, fchmod, chown, fchown, lchown, fchownat, fchmodat, fchmodat2
    *(132, 188, 189, 190, 235, 261, 280),  # utime, setxattr, lsetxattr, fsetxattr, utimes, futimesat, utimensat
}
"""Numbers of the other calls that change files, on x86_64."""
ALL_CALLS = platform.machine() != "x86_64" or os.environ.get("RECOVERY_TEST_ALL_CALLS") == "1"
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def killed_at(work: Callable[[], None], number: int, *, changes: bool = False) -> bool:
    """Do `work` in a child and kill it as it enters its call `number` (from 1); False when it ended before.

    changes: count only calls that change files. Between two of them the disk is the same, so one kill stands for all.
    Where their numbers are not known (other processors than x86_64), or with RECOVERY_TEST_ALL_CALLS=1, all count.
    To be used in a process without threads. Raises AssertionError when the work failed by itself.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _libc.ptrace(TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
            code = 0
        finally:
            os._exit(code)
    os.waitpid(pid, 0)
    assert _libc.ptrace(SETOPTIONS, pid, None, MARK_CALLS) == 0, os.strerror(ctypes.get_errno())
    calls, entered, every = 0, False, ALL_CALLS or not changes
    while True:
        assert _libc.ptrace(SYSCALL, pid, None, None) == 0, os.strerror(ctypes.get_errno())
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the work failed by itself"
            return False
        # It stops at the entry of a call and at its exit.
        entered = not entered
        calls += entered and (every or _changes_files(pid))
        if calls == number:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return True


def _changes_files(pid: int) -> bool:
    """Whether the call that a stopped process enters can change files."""
    info = ctypes.create_string_buffer(INFO.size)
    assert _libc.ptrace(SYSCALL_INFO, pid, INFO.size, info) > 0, os.strerror(ctypes.get_errno())
    *_, call, a, b, c, _d, _e, _f = INFO.unpack(info.raw)
    if call in OPENS:
        return bool((a, b, c)[OPENS[call]] & (os.O_CREAT | os.O_TRUNC))
    return call in CHANGES
