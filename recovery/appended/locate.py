"""Which file holds content read before, whatever its name is now.

Content decides: a file qualifies only if it begins with the content that was read. Among qualifying files, inode
number and name decide, so files with equal beginnings stay distinct if the file system can distinguish them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from recovery.appended.files import Files, FileStat, PathPattern, directory_of, joined
from recovery.appended.position import FilePosition
from recovery.appended.rotation import generation, is_rotation_of, siblings_pattern

Holds = Callable[[FileStat, FilePosition], bool]
"""Returns whether the file has the content that the position describes."""

CONVINCING_BYTES = 256
"""Equal content of this length identifies a file without its name or inode number."""


class Look:
    """The input's directories at one moment; files that are not input are read only on request."""

    def __init__(self, files: Files, pattern: PathPattern) -> None:
        self._files = files
        self._pattern = pattern
        self._names = {directory: files.names(directory) for directory in files.directories(pattern)}
        self._stats: dict[str, FileStat | None] = {}
        listed = (
            self.at(joined(directory, name))
            for directory, names in self._names.items()
            for name in names
            if pattern.names(name)
        )
        self.listed = {file.path: file for file in listed if file is not None}

    def at(self, path: str) -> FileStat | None:
        """Return the regular file at a path in one of the input's directories, or None."""
        if directory_of(path) not in self._names:
            return None
        if path not in self._stats:
            self._stats[path] = self._files.stat(path)
        return self._stats[path]

    def siblings(self, directory: str) -> list[FileStat]:
        """Return all regular files of one of the input's directories, input or not."""
        found = (self.at(joined(directory, name)) for name in self._names.get(directory, ()))
        return [file for file in found if file is not None]

    def everything(self) -> list[FileStat]:
        """Return the listed files first, then all others in the input's directories."""
        others = (file for directory in self._names for file in self.siblings(directory))
        return [*self.listed.values(), *(file for file in others if file.path not in self.listed)]


def locate(positions: Mapping[int, FilePosition], look: Look, holds: Holds) -> dict[int, FileStat]:
    """Return the present file of each position that has one; no two positions share a file. In order of preference:

    1. The same inode number under the same name.
    2. The same inode number under another name: renamed.
    3. The same name with another inode number: copied back, or moved to another machine.
    4. Any other file with convincing evidence: a rotation's name, the same name in another directory, or
       `CONVINCING_BYTES` of equal content. A rotation that copies and truncates leaves such a file.
    """
    found: dict[int, FileStat] = {}
    taken: set[tuple[int, int]] = set()

    def settle(choose: Callable[[FilePosition], Iterable[FileStat]]) -> None:
        for number, position in positions.items():
            if number in found:
                continue
            for file in choose(position):
                if (file.device, file.inode) not in taken and holds(file, position):
                    found[number] = file
                    taken.add((file.device, file.inode))
                    break

    def in_place(position: FilePosition) -> list[FileStat]:
        here = look.at(position.path)
        return [] if here is None else [here]

    settle(lambda position: [file for file in in_place(position) if file.inode == position.inode])
    if len(found) < len(positions):
        everything = look.everything()
        by_inode: dict[int, list[FileStat]] = {}
        for file in everything:
            by_inode.setdefault(file.inode, []).append(file)
        settle(lambda position: by_inode.get(position.inode, ()))
        settle(in_place)
        others = [file for file in everything if (file.device, file.inode) not in taken]
        settle(lambda position: _convincing(position, others))
    return found


def later_generations(look: Look, position: FilePosition, file: FileStat) -> list[FileStat]:
    """Return the files that rotation put between the position's `file` and the file that has its old name now.

    Their names follow the pattern of `file`'s name, and they were written to after the position was taken: earlier
    generations were not, and `file` itself may have been. Listed files are excluded.
    """
    origin = position.origin
    pattern = siblings_pattern(origin, file.name)
    if pattern is None:
        return []
    since = position.mtime_ns, generation(origin, file.name)
    return [
        one
        for one in look.siblings(file.directory)
        if one.path not in look.listed
        and pattern.fullmatch(one.name)
        and (one.mtime_ns, generation(origin, one.name)) > since
    ]


def _convincing(position: FilePosition, files: Iterable[FileStat]) -> list[FileStat]:
    """Return the files that may be the position's although name and inode differ, the most likely first."""

    def rank(file: FileStat) -> tuple[bool, int, str]:
        return not is_rotation_of(position.origin, file.name), -file.size, file.path

    return sorted(
        (
            file
            for file in files
            if file.name == position.name
            or position.offset >= CONVINCING_BYTES
            or (file.directory == position.directory and is_rotation_of(position.origin, file.name))
        ),
        key=rank,
    )
