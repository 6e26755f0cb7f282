"""Where a run resumes, for every combination of partition files, against an oracle of its own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.base.ids import Lease
from recovery.errors import (
    CorruptPartitionError,
    DuplicatePartitionError,
    EpochNotHeldError,
    FlowMismatchError,
    ForeignPartitionError,
    InconsistentPartitionsError,
    MissingPartitionsError,
    NoPartitionsError,
    RecoveryError,
    StorageError,
)
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.planning.values import ClosedEpoch, Execution, FoundFile, PartitionDescription

N = 3
DIRECTORY = Path("/data/db")
FLOW = "flow"


@dataclass
class Sketch:
    """A partition in few words: which execution closed each epoch it holds, and up to where it has collected."""

    index: int
    epochs: Mapping[int, str] = field(default_factory=dict)
    collected: int = 0
    store: str = "store"
    flow: str | None = FLOW
    count: int = N
    name: str | None = None
    clock_ms: Mapping[int, int] = field(default_factory=dict)
    batches: Mapping[int, int] = field(default_factory=dict)


NUMBERS = {"x": 1, "y": 2, "z": 3}


def describe(sketch: Sketch) -> PartitionDescription:
    """The description that such a partition gives of itself."""
    executions = sorted(set(sketch.epochs.values()))
    return PartitionDescription(
        path=DIRECTORY / (sketch.name or f"part-{sketch.index}.sqlite3"),
        index=sketch.index,
        count=sketch.count,
        store_id=sketch.store,
        flow_id=sketch.flow,
        collected=sketch.collected,
        executions=tuple(
            Execution(NUMBERS[name], name, FLOW, 1, 0, 10.0, 0.0, "host", 1, "test") for name in executions
        ),
        epochs=tuple(
            ClosedEpoch(
                epoch=epoch,
                execution=Lease(NUMBERS[name], name),
                batch_id=sketch.batches.get(epoch, 10 * epoch),
                closed_ms=1_000 * epoch,
                clock_ms=sketch.clock_ms.get(epoch, 1_000 * epoch),
                written=0, live_rows=0, live_digest=0, superseded_rows=0, superseded_digest=0,
            )
            for epoch, name in sorted(sketch.epochs.items())
        ),
        size_bytes=4096,
    )  # fmt: skip


def span(first: int, last: int, execution: str = "x") -> dict[int, str]:
    """Epochs closed by one execution."""
    return dict.fromkeys(range(first, last + 1), execution)


# The history behind the kinds: execution x closed epochs 1 to 6; the files have collected up to 3, so they can go back
# no further than the snapshot of epoch 3. y is a timeline that branched off after epoch 4, z one that did after 2.
KINDS = {
    "current": lambda i: Sketch(i, span(3, 6), collected=3),
    "slower to collect": lambda i: Sketch(i, span(1, 6), collected=1),
    "older, in the window": lambda i: Sketch(i, span(2, 4), collected=2),
    "too old": lambda i: Sketch(i, span(1, 2), collected=1),
    "newer": lambda i: Sketch(i, span(3, 7), collected=3),
    "collected further": lambda i: Sketch(i, span(6, 7), collected=6),
    "never run": lambda i: Sketch(i, flow=None),
    "started only": lambda i: Sketch(i),
    "other timeline": lambda i: Sketch(i, span(3, 4) | span(5, 7, "y"), collected=3),
    "other timeline, from before the window": lambda i: Sketch(i, span(1, 2) | span(3, 6, "z"), collected=1),
    "missing": lambda i: None,
    "damaged": lambda i: CorruptPartitionError("damaged", path=DIRECTORY / f"part-{i}.sqlite3"),
    "unreadable": lambda i: StorageError("unreadable", path=DIRECTORY / f"part-{i}.sqlite3"),
    "other store": lambda i: Sketch(i, span(3, 6), collected=3, store="another"),
    "other flow": lambda i: Sketch(i, span(3, 6), collected=3, flow="another"),
    "another's copy": lambda i: Sketch((i + 1) % N, span(3, 6), collected=3, name=f"part-{i}.sqlite3"),
}
COMBINATIONS = list(itertools.product(KINDS, repeat=N))


def found_files(kinds) -> list[FoundFile]:
    """The directory in which partition i is of the i-th kind."""
    found = []
    for index, kind in enumerate(kinds):
        made = KINDS[kind](index)
        path = DIRECTORY / f"part-{index}.sqlite3"
        if isinstance(made, RecoveryError):
            found.append(FoundFile(path, None, made))
        elif made is not None:
            found.append(FoundFile(path, describe(made)))
    return found


def oracle(kinds, resume_epoch: int | None) -> int | type[RecoveryError]:
    """The resume epoch or the error, worked out from the rules one by one, epoch by epoch."""
    made = [KINDS[kind](index) for index, kind in enumerate(kinds)]
    for each in made:
        if isinstance(each, RecoveryError):
            return type(each)
    files = [each for each in made if each is not None]
    if not files:
        return NoPartitionsError
    if len({each.store for each in files}) > 1:
        return ForeignPartitionError
    if any(each.name is not None for each in files):
        return DuplicatePartitionError
    if len(files) < N:
        return MissingPartitionsError
    flows = {each.flow for each in files} - {None}
    if len(flows) > 1 or flows - {FLOW}:
        return FlowMismatchError
    resumable = set()
    for epoch in range(10):
        # Who closed it, according to each file; a file that has collected past it cannot say.
        closers = set()
        for each in files:
            if epoch == 0:
                closers.add("beginning" if each.collected == 0 else None)
            else:
                closers.add(each.epochs.get(epoch) if epoch >= each.collected else None)
        if len(closers) == 1 and None not in closers:
            resumable.add(epoch + 1)
    if not resumable:
        return InconsistentPartitionsError
    if resume_epoch is None:
        return max(resumable)
    return resume_epoch if resume_epoch in resumable else EpochNotHeldError


def outcome(found, resume_epoch=None) -> ResumePlan | RecoveryError:
    """The plan or the error."""
    try:
        return plan_resume(found, flow_id=FLOW, resume_epoch=resume_epoch)
    except RecoveryError as error:
        return error


@pytest.mark.parametrize("first", KINDS)
def test_every_combination_of_files_has_the_plan_or_the_error_of_the_oracle(first):
    """Three files, each in any of sixteen conditions, without and with a request for an epoch."""
    for kinds in COMBINATIONS:
        if kinds[0] != first:
            continue
        found = found_files(kinds)
        for resume_epoch in (None, 1, 2, 4, 5, 7, 9):
            expected = oracle(kinds, resume_epoch)
            planned = outcome(found, resume_epoch)
            if isinstance(expected, int):
                assert isinstance(planned, ResumePlan), f"{kinds} {resume_epoch}: {planned}"
                assert planned.resume_epoch == expected, f"{kinds} {resume_epoch}"
            else:
                assert type(planned) is expected, f"{kinds} {resume_epoch}: {planned}"


def test_the_combinations_reach_every_outcome():
    """The enumeration is no empty promise: every error and several resume epochs come up."""
    outcomes = {oracle(kinds, resume_epoch) for kinds in COMBINATIONS for resume_epoch in (None, 5)}
    assert {each for each in outcomes if not isinstance(each, int)} == {
        CorruptPartitionError, StorageError, NoPartitionsError, ForeignPartitionError, DuplicatePartitionError,
        MissingPartitionsError, FlowMismatchError, InconsistentPartitionsError, EpochNotHeldError,
    }  # fmt: skip
    assert {each for each in outcomes if isinstance(each, int)} == {1, 3, 5, 7, 8}


@pytest.mark.parametrize("resume_epoch", [None, 4, 5])
def test_a_plan_agrees_with_all_its_files(resume_epoch):
    """For every combination that has a plan: its snapshot is in every file with the same execution, and so on."""
    plans = 0
    for kinds in COMBINATIONS:
        planned = outcome(found_files(kinds), resume_epoch)
        if not isinstance(planned, ResumePlan):
            continue
        plans += 1
        assert [d.index for d in planned.partitions] == list(range(N))
        assert planned.window == tuple(sorted(planned.window))
        assert planned.resume_epoch - 1 in planned.window
        if resume_epoch is None:
            assert planned.resume_epoch - 1 == planned.window[-1]
        if planned.snapshot is None:
            assert planned.resume_epoch == 1
        else:
            assert planned.snapshot.epoch == planned.resume_epoch - 1
            assert all(planned.snapshot.cut in [e.cut for e in d.epochs] for d in planned.partitions)
        seen = [e.number for d in planned.partitions for e in d.executions]
        assert planned.execution_number > max(seen, default=0)
        shared = planned.window[-1]
        for verdict, description in zip(planned.verdicts, planned.partitions, strict=True):
            assert verdict.path == description.path
            assert verdict.behind == max(d.newest_epoch for d in planned.partitions) - description.newest_epoch
            assert verdict.limits == (description.newest_epoch == shared and verdict.behind > 0)
    assert plans > 50


def test_the_order_of_the_files_does_not_matter():
    """A plan or an error depends on what the files say, not on the order in which they were listed."""
    for kinds in COMBINATIONS[::7]:
        found = found_files(kinds)
        results = {repr(outcome(list(order), None)) for order in itertools.permutations(found)}
        kinds_of_result = {type(outcome(list(order), None)) for order in itertools.permutations(found)}
        assert len(kinds_of_result) == 1 or {"damaged", "unreadable"} <= set(kinds), kinds
        if kinds_of_result == {ResumePlan}:
            assert len(results) == 1


TREE = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=5)


@given(tree=TREE, copies=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=N, max_size=N))
def test_copies_of_any_age_from_any_timeline_never_mix(tree, copies):
    """A store with rewinds, files copied at random moments: a plan's snapshot is one that all files have in common."""
    # Every moment of the store is a tuple of the epochs' closers; each execution goes back and closes some more.
    moments: list[tuple[int, ...]] = [()]
    for execution, (back_to, more) in enumerate(tree):
        line = moments[-1][:back_to]
        for _ in range(more):
            line = (*line, execution)
            moments.append(line)
    taken = []
    for index, (moment, kept) in enumerate(copies):
        line = moments[moment % len(moments)]
        collected = kept % (len(line) + 1)
        epochs = {number: closer for number, closer in enumerate(line, 1) if number >= collected}
        taken.append((line, collected))
        executions = {closer: f"run-{closer}" for closer in epochs.values()}
        NUMBERS.update({name: closer + 1 for closer, name in executions.items()})
        sketch = Sketch(index, {n: f"run-{c}" for n, c in epochs.items()}, collected=collected)
        copies[index] = FoundFile(DIRECTORY / f"part-{index}.sqlite3", describe(sketch))
    common = 0
    while all(len(line) > common for line, _ in taken) and len({line[common] for line, _ in taken}) == 1:
        common += 1
    floor = max(collected for _, collected in taken)
    planned = outcome(copies)
    if floor > common:
        assert isinstance(planned, InconsistentPartitionsError)
    else:
        assert planned.resume_epoch == common + 1
        assert planned.window == tuple(range(floor, common + 1))


class TestMessages:
    """What an error says."""

    def test_files_that_are_too_old_are_named_with_their_age(self):
        """Which files, where they end, how old that is for the others, and what to do."""
        error = outcome(found_files(["current", "too old", "too old"]))
        assert isinstance(error, InconsistentPartitionsError)
        assert "part-1.sqlite3 ends at epoch 2, 1 s too old" in str(error)
        assert "part-2.sqlite3 ends at epoch 2" in str(error)
        assert "part-0.sqlite3 goes back no further than epoch 3" in str(error)
        assert "copies that hold epoch 3 or a newer one" in error.remedy

    def test_a_file_that_was_never_run_among_others(self):
        """It ends before the first epoch, and has no age."""
        error = outcome(found_files(["current", "never run", "current"]))
        assert "part-1.sqlite3 ends at epoch 0; part-0.sqlite3" in str(error)

    def test_files_of_an_abandoned_timeline_are_distinguished_from_old_ones(self):
        """Their epochs have the right numbers, so the cause is another one, and so is the remedy."""
        error = outcome(found_files(["current", "current", "other timeline, from before the window"]))
        assert "closed by the same execution" in str(error)
        assert "part-2.sqlite3 holds epochs 1 to 6 (last by execution 3)" in str(error)
        assert "abandoned timeline" in error.cause

    def test_missing_files_are_named(self):
        """All of them."""
        error = outcome(found_files(["missing", "current", "missing"]))
        assert "part-0.sqlite3, part-2.sqlite3 of 3 partitions missing" in str(error)

    @pytest.mark.parametrize("position", range(N))
    def test_a_foreign_file_is_named_not_the_others(self, position):
        """The odd one out is the one that is foreign."""
        kinds = ["current"] * N
        kinds[position] = "other store"
        error = outcome(found_files(kinds))
        assert error.path == str(DIRECTORY / f"part-{position}.sqlite3")

    def test_a_copy_under_another_name_is_named(self):
        """A stray copy beside a complete set is refused by its own name."""
        found = found_files(["current"] * N)
        stray = describe(Sketch(0, span(3, 5), collected=3, name="part-0-old.sqlite3"))
        error = outcome([*found, FoundFile(stray.path, stray)])
        assert isinstance(error, DuplicatePartitionError)
        assert error.path == str(DIRECTORY / "part-0-old.sqlite3")
        assert "part-0.sqlite3" in error.found

    def test_flows_are_named(self):
        """Both, and which file is whose."""
        error = outcome(found_files(["current", "other flow", "current"]))
        assert "part-1.sqlite3 of 'another'" in str(error)
        with pytest.raises(FlowMismatchError, match="'flow', not of 'mine'"):
            plan_resume(found_files(["current"] * N), flow_id="mine")

    def test_pipelines_bind_a_directory_in_turn(self):
        """A file that the last start did not reach, or an older copy, is bound to the pipeline before; a file with
        another history is still refused."""
        first, second = (
            Execution(number, name, flow, 1, 0, 10.0, 0.0, "host", 1, "test")
            for number, name, flow in ((1, "x", "a"), (2, "w", "b"))
        )
        files = [
            replace(describe(Sketch(index, flow=flow)), executions=executions)
            for index, (flow, executions) in enumerate([("b", (first, second)), ("a", (first,)), (None, ())])
        ]
        found = [FoundFile(each.path, each) for each in files]
        assert plan_resume(found, flow_id="b").execution_number == 3
        assert plan_resume(found, flow_id="c", shared=True).execution_number == 3
        with pytest.raises(FlowMismatchError, match="of flow 'b', not of 'c'"):
            plan_resume(found, flow_id="c")
        found[1] = FoundFile(files[1].path, replace(files[1], executions=(replace(first, id="other"),)))
        with pytest.raises(FlowMismatchError, match="files of several flows"):
            plan_resume(found, flow_id="b", shared=True)

    def test_an_epoch_that_is_not_held_says_which_are(self):
        """The range that can be asked for."""
        error = outcome(found_files(["current"] * N), 9)
        assert isinstance(error, EpochNotHeldError)
        assert "at epochs 4 to 7" in str(error)

    @pytest.mark.parametrize("kinds", [["current", "too old", "current"], ["current", "other flow", "current"],
                                       ["missing", "current", "current"], ["current"] * N])  # fmt: skip
    def test_an_error_about_files_in_several_places_names_no_place_but_those_of_the_files(self, kinds):
        """Partitions at two owners: an error about a file of one does not begin with the address of the other."""
        hosts = {f"part-{index}.sqlite3": f"h{index % 2}:7337/part-{index}.sqlite3" for index in range(N)}
        found = found_files(kinds)
        spread = [FoundFile(Path(hosts[each.path.name]), replace(each.description, path=Path(hosts[each.path.name])))
                  for each in found if each.description is not None]  # fmt: skip
        asked = 99 if kinds == ["current"] * N else None
        together, apart = outcome(found, asked), outcome(spread, asked)
        assert type(apart) is type(together)
        assert (together.path, apart.path) == (str(DIRECTORY), None)
        if kinds[1] != "current":
            assert "h1:7337/part-1.sqlite3" in apart.found

    def test_counts_that_differ_are_no_store(self):
        """Files of one store id that disagree on N cannot be used."""
        found = [describe(Sketch(0, count=2)), describe(Sketch(1, count=3))]
        error = outcome([FoundFile(d.path, d) for d in found])
        assert isinstance(error, ForeignPartitionError)
        assert "part-1 of 3 partitions, the other files are of 2" in str(error)


def test_the_same_epoch_after_another_batch_is_not_the_same_snapshot():
    """Also when number and execution agree: the cut is where the input stood."""
    found = [describe(Sketch(i, span(1, 2), batches={2: 20 + (i == 1)})) for i in range(N)]
    assert outcome([FoundFile(d.path, d) for d in found]).resume_epoch == 2


def test_a_run_without_a_flow_id_is_a_look():
    """status and plan ask without naming a flow: any flow is fine, as long as it is one."""
    assert plan_resume(found_files(["other flow"] * N)).flow_id == "another"
    assert plan_resume(found_files(["never run"] * N)).flow_id is None


def test_verdicts_say_who_holds_the_others_back():
    """One older file limits; the newer ones lose what is beyond it; in a set of one age all are current."""
    plan = outcome(found_files(["current", "older, in the window", "newer"]))
    assert [verdict.limits for verdict in plan.verdicts] == [False, True, False]
    assert plan.verdicts[0].note == "2 epochs after the newest shared one will be abandoned"
    assert plan.verdicts[2].note == "3 epochs after the newest shared one will be abandoned"
    assert {v.note for v in outcome(found_files(["current"] * N)).verdicts} == {"current"}


def test_the_recovery_clock_continues_from_its_newest_reading():
    """The newest of any file, also of one that is ahead of the others; nothing before the first epoch."""
    plan = outcome(found_files(["current", "newer", "current"]))
    assert plan.last_clock == (7_000, 7_000)
    assert outcome(found_files(["never run"] * N)).last_clock == (0, None)


def test_a_clock_that_was_behind_makes_no_time_seem_longer():
    """Wall time is taken from the epoch that makes the time since shortest."""
    sketches = [Sketch(index, {1: "x", 2: "x", 3: "x"}) for index in range(N)]
    behind = {1: 50_000, 2: 51_000, 3: 7}
    files = []
    for sketch in sketches:
        described = describe(sketch)
        epochs = tuple(replace(each, closed_ms=behind[each.epoch]) for each in described.epochs)
        files.append(FoundFile(described.path, replace(described, epochs=epochs)))
    plan = plan_resume(files)
    assert plan.last_clock == (3_000, 52_000)
