"""Tasks of a step with `on_error="quarantine"`: rows for which `update` fails are stored, and the other keys go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat, tee
from typing import Any

import pyarrow as pa

from recovery.base.ids import PartitionIndex
from recovery.errors import StateValueError
from recovery.spark.tasks.changes import by_value, key_of, too_large
from recovery.spark.tasks.quarantine import belongs_to_row
from recovery.spark.tasks.quarantining import Attempted, Quarantining, of_one_key
from recovery.spark.tasks.step_task import FailedCall, KeyGroups
from recovery.storage.seam import FIELD_SEPARATOR, Changes


@dataclass
class _Calls:
    """Calls of update for keys of one partition, whose output and changes are not kept yet.

    marks: how long the output was before each call. failing: the errors of calls that count as failed, by index.
    """

    partition: PartitionIndex
    keys: Sequence[Any]
    texts: Sequence[str]
    stored: Sequence[str | None]
    starts: Sequence[int]
    ends: Sequence[int]
    timed_out: bool
    output: list[tuple[Any, ...]]
    marks: Iterable[int]
    changes: Changes | None
    failing: dict[int, Exception] = field(default_factory=dict)

    def bounds(self) -> list[int]:
        """Where the output of each call begins, and the end."""
        if not isinstance(self.marks, list):
            self.marks = [*self.marks, len(self.output)]
        return self.marks

    def failed(self, index: int) -> FailedCall:
        """The call for a key, by its index."""
        start, end = self.starts[index], self.ends[index]
        return FailedCall(
            self.partition, self.keys[index], self.texts[index], self.stored[index], start, end, self.timed_out
        )

    def kept_output(self) -> list[tuple[Any, ...]]:
        """The output without that of failing calls."""
        if not self.failing:
            return self.output
        bounds, kept = self.bounds(), list[tuple[Any, ...]]()
        for index in range(len(self.texts)):
            if index not in self.failing:
                kept += self.output[bounds[index] : bounds[index + 1]]
        return kept


class QuarantineTask(Quarantining):
    """A task of a step whose `update` is called per key.

    A chunk's output and changes are kept only once all output has been converted: a row that does not fit the declared
    output fails its key, too.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._chunk: pa.RecordBatch | None = None
        self._calls: list[_Calls] = []
        self._lengths: Iterable[int] = ()
        self._changes: Changes | None = None
        self._errors: list[Exception] | None = None
        """Where a replayed call leaves its error; None for a call of new rows."""

    def _process(self, chunk: pa.RecordBatch) -> pa.RecordBatch | None:
        runs = self._admitted(chunk)
        if runs is None:
            return None
        return self._settled(self._call_all(*self._readable(runs)) if runs.texts else [])

    def _readable(self, runs: KeyGroups) -> tuple[KeyGroups, Sequence[Any], list[Any]]:
        """Return the keys with the values for update. Keys with values that Python cannot represent go to
        quarantine."""
        self._chunk = runs.chunk
        try:
            return runs, *self._values(runs)
        except StateValueError:
            unreadable = dict(self._unreadable(runs))
            if not unreadable:
                raise
        rest = self._put(runs, unreadable)
        self._chunk = rest.chunk
        return (rest, *self._values(rest)) if rest.texts else (rest, [], [])

    def _unreadable(self, runs: KeyGroups) -> Iterator[tuple[int, StateValueError]]:
        start = 0
        for index, end in enumerate(runs.ends.to_pylist()):
            rows, ends = runs.chunk.slice(start, end - start), pa.array([end - start])
            try:
                self._values(KeyGroups(rows, runs.texts[index : index + 1], runs.raw[index : index + 1], ends))
            except StateValueError as error:
                yield index, error
            start = end

    def _call(
        self,
        partition: PartitionIndex,
        keys: Sequence[Any],
        texts: list[str],
        stored: list[str | None],
        rows: list[Any],
        starts: list[int],
        ends: list[int],
        timed_out: bool = False,
    ) -> list[tuple[Any, ...]]:
        self._changes = None
        output = super()._call(partition, keys, texts, stored, rows, starts, ends, timed_out)
        self._calls.append(
            _Calls(partition, keys, texts, stored, starts, ends, timed_out, output, self._lengths, self._changes)
        )
        self._lengths = ()
        return output

    def _marks(self, output: list[Any], count: int) -> Iterable[int]:
        # Both iterators run in C: the loop over keys pays for one call of `len`.
        given, self._lengths = tee(map(len, repeat(output, count)))
        return given

    def _keep_changes(self, partition: PartitionIndex, changes: Changes) -> None:
        self._changes = changes

    def _failed(self, error: Exception, call: FailedCall) -> str | None:
        if not belongs_to_row(error):
            return super()._failed(error, call)
        if self._errors is not None:
            self._errors.append(error)
            return None
        rows = None
        if not call.timed_out:
            assert self._chunk is not None
            rows = self._chunk.slice(call.start, call.end - call.start)
        self._quarantine.put(call.partition, call.text, rows, error)
        # A timeout that stays would be due again in every micro-batch.
        return _without_timeout(call.before, call.text) if call.timed_out else None

    def _settled(self, output: list[tuple[Any, ...]]) -> pa.RecordBatch | None:
        """Convert the output of the calls since the last time, and keep their changes. Calls with an output or a state
        that does not fit fail now."""
        calls, self._calls = self._calls, []
        for each in calls:
            self._reject_large(each)
        if any(each.failing for each in calls):
            output = [row for each in calls for row in each.kept_output()]
        try:
            found = self._to_arrow(output) if output else None
        except StateValueError:
            for each in calls:
                self._reject_misfits(each)
            output = [row for each in calls for row in each.kept_output()]
            found = self._to_arrow(output) if output else None
        for each in calls:
            if each.changes is not None:
                self._spool(each.partition).add(each.changes)
        self._quarantine.flush()
        return found

    def _reject_large(self, calls: _Calls) -> None:
        """Let calls fail whose state is too large to be stored."""
        large = {} if calls.changes is None else dict(too_large(self._definition.step_id, calls.changes))
        if large:
            self._reject(calls, {index: large[text] for index, text in enumerate(calls.texts) if text in large})

    def _reject_misfits(self, calls: _Calls) -> None:
        """Let calls fail whose output does not fit the declared one."""
        bounds, found = calls.bounds(), dict[int, Exception]()

        def look(first: int, end: int) -> None:
            rows = calls.output[bounds[first] : bounds[end]]
            if not rows:
                return
            try:
                self._to_arrow(rows)
            except StateValueError as error:
                if end - first == 1:
                    found[first] = error
                else:
                    middle = (first + end) // 2
                    look(first, middle)
                    look(middle, end)

        look(0, len(calls.texts))
        self._reject(calls, {index: error for index, error in found.items() if index not in calls.failing})

    def _reject(self, calls: _Calls, failing: Mapping[int, Exception]) -> None:
        """Let calls fail after all, by index: their rows go to quarantine, their output and changes do not count."""
        calls.failing.update(failing)
        texts = {calls.texts[index] for index in failing}
        instead = [self._failed(error, calls.failed(index)) for index, error in failing.items()]
        changes = calls.changes or Changes((), self._definition.timeouts)
        stay = [one for one in changes.packed if key_of(one, changes) not in texts]
        self._keys -= len(changes.packed) - len(stay)
        calls.changes = changes._replace(packed=(*stay, *(one for one in instead if one is not None)))

    def _wake(self, partitions: Iterable[int]) -> None:
        woken = {*map(PartitionIndex, partitions)} - self._awake
        super()._wake(woken)
        definition = self._definition
        if not (woken and definition.timeouts and definition.hold == "no") or self._quarantine.is_empty:
            return
        for home, texts in by_value(self._quarantine.freed(woken)):
            stored = self._stored({home: tuple(texts)})[home]
            # A key whose state was removed since has no timeout.
            self._due.update((text, home) for text, state in zip(texts, stored, strict=True) if state is not None)

    def _late(self) -> Iterator[pa.RecordBatch]:
        self._quarantine.wake(self._due.values())
        behind = {text: home for text, home in self._due.items() if self._quarantine.goes_behind(text)}
        for text in behind:
            del self._due[text]
        held = {text: home for text, home in behind.items() if self._quarantine.holds(text)}
        # A timeout that stays would be due again in every micro-batch.
        for home, texts in by_value(held):
            for text, before in zip(texts, self._stored({home: tuple(texts)})[home], strict=True):
                self._spool(home).add(Changes((_without_timeout(before, text),), timeouts=True))
                self._quarantine.overdue(home, text, self._now_ms)
        found = self._settled(list(self._time_out(by_value(self._due))))
        if found is not None:
            yield found
        for text, home in sorted(self._quarantine.marked.items()):
            yield from self._replay(home, text, text in behind and text not in held)

    def _attempted(self, home: PartitionIndex, text: str, state: str | None, rows: pa.RecordBatch | None) -> Attempted:
        values: list[Any] = []
        if rows is not None:
            self._chunk = rows
            keys, values = self._values(of_one_key(rows, text))
        elif state is None:
            # A key without a state has no timeout.
            return None, None
        else:
            keys = self._parse_keys([text])
        self._errors = errors = list[Exception]()
        try:
            output = self._call(home, keys, [text], [state], values, [0], [len(values)], rows is None)
        finally:
            self._errors = None
        changes = self._calls.pop().changes
        if changes is not None:
            errors += dict(too_large(self._definition.step_id, changes)).values()
        if errors:
            raise errors[0]
        return self._to_arrow(output) if output else None, changes

    def _call_behind(
        self, home: PartitionIndex, text: str, state: str | None, chunk: pa.RecordBatch | None
    ) -> pa.RecordBatch | None:
        if chunk is None:
            keys, rows = self._parse_keys([text]), list[Any]()
        else:
            self._chunk = chunk
            try:
                keys, rows = self._values(of_one_key(chunk, text))
            except StateValueError as error:
                self._quarantine.put(home, text, chunk, error)
                return None
        output = self._call(home, keys, [text], [state], rows, [0], [len(rows)], timed_out=chunk is None)
        return self._settled(output)


def _without_timeout(state: str | None, text: str) -> str:
    """Return the packed change that keeps a key's state and clears its timeout."""
    return f"{state or ''}{FIELD_SEPARATOR}{FIELD_SEPARATOR}{text}"
