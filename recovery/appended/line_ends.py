"""Where lines end in a file, for plans: without Arrow, which only tasks need."""

from __future__ import annotations

from recovery.appended.position import Read

WINDOW_BYTES = 2 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def find_line_end(read: Read, start: int, stop: int, step: int = WINDOW_BYTES) -> int | None:
    """Return the place just after the first line end in [start, stop), or None; searches forwards."""
    while start < stop:
        data = read(start, min(step, stop - start))
        found = data.find(b"\n")
        if found >= 0:
            return start + found + 1
        if not data:
            return None
        start += len(data)
    return None


def find_last_line_end(read: Read, start: int, stop: int, step: int = 1 << 16) -> int | None:
    """Return the place just after the last line end in [start, stop), or None; searches backwards."""
    while start < stop:
        begin = max(start, stop - step)
        found = read(begin, stop - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        stop, step = begin, min(2 * step, WINDOW_BYTES)
    return None
