"""Files in a directory that are none of its partitions, or have a wrong name: what each one is, and the commands that
help.

Pure functions of what reading the directory found. Every command describes such a file in the same words, because all
take the words from here. No command named here overwrites a file: `mv -n` does not, and a name to which a file is moved
away is free.
"""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recovery.base.wording import counted
from recovery.errors import CorruptPartitionError, DuplicatePartitionError, ForeignPartitionError, RecoveryError
from recovery.planning.values import FoundFile, PartitionDescription

ASIDE = ".aside"
"""The end of a name under which a file stays in the directory, and no command reads it."""
_LOGS = "Rename the log of each file, NAME-wal, in the same way, if there is one."


def free_name(name: str, end: str, is_taken: Callable[[str], bool]) -> str:
    """Return the first name that is not taken: of `name` with `end`, then with `end`-2, `end`-3, and so on."""
    ends = itertools.chain([end], (f"{end}-{number}" for number in itertools.count(2)))
    return next(free for each in ends if not is_taken(free := f"{name}{each}"))


def file_name(index: int) -> str:
    """Return the name of a partition's file."""
    return f"part-{index}.sqlite3"


@dataclass(frozen=True, slots=True)
class Members:
    """The store of most readable files of a directory, and its partitions that have their own names."""

    store_id: str
    count: int
    in_place: Mapping[int, PartitionDescription]

    @classmethod
    def of(cls, described: Sequence[PartitionDescription]) -> Members:
        """Return the members among files, of which there is at least one."""
        (store_id, count), _ = Counter((d.store_id, d.count) for d in described).most_common(1)[0]
        fitting = (d for d in described if (d.store_id, d.count) == (store_id, count) and d.index < count)
        return cls(store_id, count, {d.index: d for d in fitting if d.path.name == file_name(d.index)})

    def names(self) -> set[str]:
        """Return the names of all partitions of the store."""
        return set(map(file_name, range(self.count)))


@dataclass(frozen=True, slots=True)
class _Moves:
    """Commands of a shell that move files of one directory. asides: by a file's name, its free name out of the way."""

    asides: Mapping[str, str]

    @classmethod
    def among(cls, found: Sequence[FoundFile]) -> _Moves:
        """Return the moves of the files of a directory."""
        return cls({file.path.name: file.aside for file in found if file.aside})

    def aside(self, path: Path) -> str:
        """Return the command that moves a file out of the way."""
        return _move(path, self._name_aside(path.name))

    def back(self, path: Path, renamed: Mapping[str, str], useless: set[str]) -> str:
        """Return the commands that give a file its own name back, whatever has that name now. renamed: the present and
        the own names of files that were renamed."""
        chain = [path.name]
        while renamed[chain[-1]] in renamed and renamed[chain[-1]] != path.name:
            chain.append(renamed[chain[-1]])
        last = renamed[chain[-1]]
        moves = []
        if last == path.name or last in useless:
            # A circle is opened at its last name.
            moves.append(self.aside(path.with_name(last)))
        for name in reversed(chain):
            now = self._name_aside(name) if name == last else name
            moves.append(_move(path.with_name(now), renamed[name]))
        return " && ".join(moves)

    def _name_aside(self, name: str) -> str:
        return self.asides.get(name, f"{name}{ASIDE}")


def _move(path: Path, name: str) -> str:
    return shlex.join(["mv", "-n", str(path), str(path.with_name(name))])


def strays(found: Sequence[FoundFile]) -> dict[Path, RecoveryError]:
    """Return an error for every readable file of another store or with a wrong name, among the files of a directory:
    first those of other stores."""
    described = [file.description for file in found if file.description is not None]
    if not described:
        return {}
    members = Members.of(described)
    moves = _Moves.among(found)
    foreign, misplaced = {}, []
    for d in described:
        if (d.store_id, d.count) != (members.store_id, members.count) or d.index >= members.count:
            foreign[d.path] = _foreign(d, members, moves)
        elif d.path.name != file_name(d.index):
            misplaced.append(d)
    useless = {file.path.name for file in found if file.description is None} | {path.name for path in foreign}
    return foreign | _misplaced(misplaced, members, moves, useless)


def judged(found: Sequence[FoundFile]) -> list[FoundFile]:
    """Return the files of a directory, in which the errors of unreadable files say what the readable ones tell: that a
    file is none of the store's partitions, or that its content is there under another name."""
    described = [file.description for file in found if file.description is not None]
    if not described:
        return list(found)
    members = Members.of(described)
    renamed = {file_name(d.index): d for d in described if d.store_id == members.store_id}
    known = strays(found)
    moves = _Moves.among(found)
    judged = []
    for file in found:
        error = file.error
        if isinstance(error, CorruptPartitionError):
            other = renamed.get(file.path.name)
            if file.path.name not in members.names():
                error = ForeignPartitionError(
                    f"it is none of the {counted(members.count, 'partition')} of this store, and cannot be read: "
                    f"{error.found}",
                    path=file.path,
                    cause="Something else made the file, or a copy was cut off.",
                    remedy=f"Move the extra file away: {moves.aside(file.path)}",
                )
            elif other is not None and other.path in known:
                found_too = f"{error.found}; by its content {other.path.name} is {file.path.name}"
                error = CorruptPartitionError(
                    found_too, path=error.path, cause=error.cause, remedy=known[other.path].remedy
                )
        judged.append(replace(file, error=error))
    return judged


def _foreign(d: PartitionDescription, members: Members, moves: _Moves) -> ForeignPartitionError:
    if d.store_id != members.store_id:
        found = f"it belongs to store {d.store_id}, the other files to store {members.store_id}"
    else:
        found = f"it is part-{d.index} of {counted(d.count, 'partition')}, the other files are of {members.count}"
    if d.path.name in members.names():
        remedy = f"Move it away, and put this store's own {d.path.name} there: {moves.aside(d.path)}"
    else:
        remedy = f"Move the extra file away: {moves.aside(d.path)}"
    return ForeignPartitionError(found, path=d.path, remedy=remedy)


def _misplaced(
    misplaced: Sequence[PartitionDescription], members: Members, moves: _Moves, useless: set[str]
) -> dict[Path, RecoveryError]:
    """Return the errors of the store's own files under wrong names. useless: names of files that are of no use."""
    newest: dict[int, PartitionDescription] = {}
    for d in misplaced:
        if d.index not in newest or _age(d) > _age(newest[d.index]):
            newest[d.index] = d
    renamed = {i: d for i, d in newest.items() if i not in members.in_place}
    errors: dict[Path, RecoveryError] = {}
    for d in misplaced:
        name = file_name(d.index)
        rival = members.in_place.get(d.index) or renamed[d.index]
        if rival is d:
            among = {each.path.name: file_name(i) for i, each in renamed.items()}
            errors[d.path] = DuplicatePartitionError(
                f"by its content this file is {name}",
                path=d.path,
                cause="The file was renamed.",
                remedy=f"Rename the file back: {moves.back(d.path, among, useless)}. {_LOGS}",
            )
        elif _age(d) > _age(rival):
            errors[d.path] = DuplicatePartitionError(
                f"by its content this file is {name}, and newer than the file of that name: it ends at epoch "
                f"{d.newest_epoch}, {rival.path.name} at epoch {rival.newest_epoch}",
                path=d.path,
                remedy=f"Keep one of them. This one: {moves.aside(rival.path)} && {_move(d.path, name)}. Or that one: "
                f"{moves.aside(d.path)}. {_LOGS}",
            )
        else:
            age = "no newer than it" if _age(d) == _age(rival) else f"older: it ends at epoch {d.newest_epoch}"
            errors[d.path] = DuplicatePartitionError(
                f"by its content this file is a second {name}, beside {rival.path.name}, and {age}",
                path=d.path,
                cause="A copy of a partition was left in the directory.",
                remedy=f"Move the extra file away: {moves.aside(d.path)}",
            )
    return errors


def _age(d: PartitionDescription) -> tuple[int, int]:
    executions = max((execution.number for execution in d.executions), default=0)
    return executions, d.newest_epoch
