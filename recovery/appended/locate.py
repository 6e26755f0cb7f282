"""Which file holds content read before, whatever its name is now.

Content decides: a file qualifies only if it begins with the content that was read. Among qualifying files, inode
number and name decide, so files with equal beginnings stay distinct if the file system can distinguish them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from recovery.appended.files import COMPRESSED_SUFFIXES, FileStat, InputFiles, PathPattern, directory_of, joined
from recovery.appended.position import FilePosition
from recovery.appended.rotation import certain_bases, generation, is_rotation_of, siblings_pattern

Holds = Callable[[FileStat, FilePosition], bool]
"""Returns whether the file has the content that the position describes."""

CONVINCING_BYTES = 256
"""Equal content of this length identifies a file without its name or inode number."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A file that the path does not name, with the name of a generation of a log that the path names.

    origin: the log's name. plain: the path without the suffix of a compression.
    """

    file: FileStat
    origin: str
    plain: str

    @property
    def log(self) -> tuple[str, str]:
        """The log, by directory and name."""
        return self.file.directory, self.origin

    @property
    def compressed(self) -> bool:
        return self.file.path != self.plain


class DirectoryListing:
    """The input's directories at one moment; files that are not input are listed only on request."""

    def __init__(self, files: InputFiles, pattern: PathPattern) -> None:
        self._files = files
        self._pattern = pattern
        self._names = {directory: files.names(directory) for directory in files.directories(pattern)}
        self._stats: dict[str, FileStat | None] = {}
        listed = (
            self._file(joined(directory, name))
            for directory, names in self._names.items()
            for name in names
            if pattern.names(name)
        )
        self.listed = {file.path: file for file in listed if file is not None}

    def at(self, path: str) -> FileStat | None:
        """Return the regular file at a path in one of the input's directories, or None."""
        return self._file(path) if directory_of(path) in self._names else None

    def _file(self, path: str) -> FileStat | None:
        if path not in self._stats:
            self._stats[path] = self._files.stat(path)
        return self._stats[path]

    def anywhere(self, path: str) -> FileStat | None:
        """Return the regular file at a path in any directory, or None."""
        return self.at(path) or self._files.stat(path)

    def siblings(self, directory: str) -> list[FileStat]:
        """Return all regular files of one of the input's directories, input or not."""
        found = (self._file(joined(directory, name)) for name in self._names.get(directory, ()))
        return [file for file in found if file is not None]

    @cached_property
    def generations(self) -> list[Generation]:
        """The generations that the path does not name, of logs that the path names, which may be absent."""
        found = []
        for directory, names in self._names.items():
            for name in names:
                path = joined(directory, name)
                if path in self.listed:
                    continue
                plain = next((name[: -len(end)] for end in COMPRESSED_SUFFIXES if name.endswith(end)), name)
                origin = next(filter(self._pattern.names, certain_bases(plain)), None)
                if origin is not None and (file := self.at(path)) is not None:
                    found.append(Generation(file, origin, joined(directory, plain)))
        return found

    def everything(self) -> list[FileStat]:
        """Return the listed files first, then all others in the input's directories."""
        others = (file for directory in self._names for file in self.siblings(directory))
        return [*self.listed.values(), *(file for file in others if file.path not in self.listed)]


def locate(positions: Mapping[int, FilePosition], look: DirectoryListing, holds: Holds) -> dict[int, FileStat]:
    """Return the present file of each position that has one; no two positions share a file. In order of preference:

    1. The file with the same inode number and the same name.
    2. The file with the same inode number under another name: renamed.
    3. The file of the same name with another inode number: copied back, or moved to another machine.
    4. Any other file with convincing evidence: a rotation's name, the same name in another directory, or
       `CONVINCING_BYTES` of equal content. A rotation that copies and truncates leaves such a file.

    A file that was empty whenever it was seen has no content to recognise, so its inode number alone identifies it, and
    only in its old place, as input, or under a rotation's name: elsewhere the number may be another file's by now.
    """
    found: dict[int, FileStat] = {}
    taken: set[tuple[int, int]] = set()
    read = {number: position for number, position in positions.items() if not position.blank}
    blank = {number: position for number, position in positions.items() if position.blank}

    def settle(among: Mapping[int, FilePosition], choose: Callable[[FilePosition], Iterable[FileStat]]) -> None:
        for number, position in among.items():
            if number in found:
                continue
            for file in choose(position):
                if file.identity not in taken and holds(file, position):
                    found[number] = file
                    taken.add(file.identity)
                    break

    def in_place(position: FilePosition) -> list[FileStat]:
        here = look.at(position.path)
        return [] if here is None else [here]

    def same_inode_in_place(position: FilePosition) -> list[FileStat]:
        return [file for file in in_place(position) if file.inode == position.inode]

    settle(read, same_inode_in_place)
    if len(found) < len(read):
        everything = look.everything()
        by_inode: dict[int, list[FileStat]] = {}
        for file in everything:
            by_inode.setdefault(file.inode, []).append(file)
        settle(read, lambda position: by_inode.get(position.inode, ()))
        settle(read, in_place)
        others = [file for file in everything if file.identity not in taken]
        settle(read, lambda position: _convincing(position, others))
    inputs = {file.inode: file for file in reversed(list(look.listed.values()))} if blank else {}
    settle(blank, lambda position: [inputs[position.inode]] if position.inode in inputs else [])
    settle(blank, same_inode_in_place)
    if len(found) < len(positions):
        settle(blank, lambda position: _rotated(position, look))
    return found


def _rotated(position: FilePosition, look: DirectoryListing) -> list[FileStat]:
    """Return the files with the position's inode number and a rotation's name of its log."""
    return [
        file
        for file in look.siblings(position.directory)
        if file.inode == position.inode
        and (is_rotation_of(position.origin, file.name) or is_rotation_of(position.name, file.name))
    ]


def later_generations(look: DirectoryListing, position: FilePosition, file: FileStat) -> list[FileStat]:
    """Return the files that rotation put between the position's `file` and the file that has its old name now.

    The names of those files follow the pattern of `file`'s name, and the files were written to after the position was
    taken: earlier generations were not, and `file` itself may have been. Listed files are excluded.
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
