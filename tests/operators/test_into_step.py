"""A job's state imported as that of a step, without Spark, which here only reads the keys: what partitions hold
afterwards, what is refused, and what a kill leaves. tests/spark/test_into_step.py has Spark's part."""

from __future__ import annotations

import json
import random
import shutil
import signal

import pytest
from click.testing import CliRunner

from recovery.base.clock import SystemClock
from recovery.base.reserved import CHECKPOINT_STEP, DECLARATIONS_STEP
from recovery.cli import main
from recovery.errors import (
    AlreadyInitializedError,
    ConfigurationError,
    DirectoryLockedError,
    FlowLoadError,
    NoPartitionsError,
    RecoveryError,
    SparkCheckpointError,
    StateValueError,
    UnsupportedPlanError,
)
from recovery.operators.importing import import_checkpoint
from recovery.operators.into_step import IntoStep, OperatorKeys, import_into_step
from recovery.operators.mapping import SparkKey
from recovery.planning.resume import plan_resume
from recovery.storage.initialize import init_partitions
from recovery.storage.lock import DirectoryLock
from recovery.storage.scan import scan
from recovery.storage.snapshot import snapshot_at
from recovery.storage.store import OwnerAccess, Store
from recovery.values.declaration import Declaration
from recovery.values.keys import encode_key
from tests.checkpoint.support import write
from tests.faults.minirun import child, die_at, wait
from tests.operators.support import IMPORT_POINTS, OPERATOR, held, job, place, write_job
from tests.owner.served import Served, spread, token_file
from tests.shares import one_in
from tests.stores import paths_of, problems

CLOCK = SystemClock()
ODD_KEYS = ["", "␀", "nul\0inside", "😀", None, "x" * 10_000, "[null]"]
GROUPS = "applyInPandasWithState"


def describe(source, name=GROUPS, number=0):
    """Let the operator of a job written by hand be of this kind."""
    operator = {**OPERATOR, "operatorInfo": {"operatorId": number, "operatorName": name}}
    write(source, f"state/{number}/_metadata/metadata", f"v1\n{json.dumps(operator)}")


@pytest.fixture
def source(tmp_path):
    """A job that stopped after micro-batch 4."""
    write_job(tmp_path / "job", batch=4, begun=False)
    describe(tmp_path / "job")
    return tmp_path / "job"


def keys_of(seed, count=40):
    """Random keys with random states, some with a timeout."""
    generator = random.Random(seed)
    for key in [*ODD_KEYS, *(f"k{number}" for number in range(count))]:
        state = {"n": generator.randrange(100), "tags": ["é"] * generator.randrange(3)}
        yield SparkKey(encode_key(key), key, state, (generator.randrange(1, 1 << 41),) * generator.randrange(2))


def reading(keys, event_time=False, kept=None):
    """What reads these keys in Spark's place, from files that are all there."""

    def read(checkpoint, operator, step):
        found = held(checkpoint)
        assert found == job(4) | {"state/0/_metadata/metadata": found["state/0/_metadata/metadata"]}
        assert (operator.number, operator.name, step) == (0, GROUPS, "total")
        return OperatorKeys((("k", "string"),), kept, event_time, iter(keys))

    return read


def same(key, state):
    return state


def taken(source, directory, keys=None, wanted=None, flow="flow", event_time=False, **options):
    wanted = wanted or IntoStep("total", same)
    read = reading(list(keys_of(1)) if keys is None else keys, event_time)
    return import_into_step(place(source), Store(directory), flow, wanted, read, clock=CLOCK, **options)


def everything(directory):
    """Every file of a directory, byte for byte."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def partition_contents(directory):
    """What the partitions hold, without the file that locks them."""
    return {path: path.read_bytes() for path in paths_of(directory)}


def states_in(directory):
    """The states of the step, with their timeouts."""
    return {each.key: (json.loads(each.value), each.timeout_ms) for each in snapshot_at(directory).states("total")}


def states_and_position(directory):
    """What an import writes: the states of the step, and the position."""
    return states_in(directory), {each.key: each.value for each in snapshot_at(directory).states(CHECKPOINT_STEP)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, store_maker):
    """What an import that nothing disturbs writes."""
    source, directory = tmp_path_factory.mktemp("whole") / "job", store_maker(2)
    write_job(source, batch=4, begun=False)
    describe(source)
    taken(source, directory)
    return states_and_position(directory)


@pytest.mark.parametrize("seed", range(8))
def test_states_position_and_declaration_are_one_epoch(source, store_dir, seed):
    """The first epoch of the partitions: every key with its state and timeout; the position, and none of the files of
    Spark's state; what the step's key and states are."""
    before, keys = held(source), list(keys_of(seed))
    done = taken(source, store_dir, keys)
    assert (done.epoch, done.batch, done.keys, done.left_out) == (1, 4, len(keys), 0)
    assert done.timeouts == sum(bool(each.times) for each in keys)
    assert problems(store_dir) == []
    plan = plan_resume(scan(store_dir), flow_id="flow")
    assert plan.snapshot is not None
    assert (plan.resume_epoch, plan.snapshot.batch_id) == (2, 4)
    assert states_in(store_dir) == {each.text: (each.state, each.times[0] if each.times else None) for each in keys}
    at = snapshot_at(store_dir)
    position = {each.key for each in at.states(CHECKPOINT_STEP)}
    assert position == {path for path in job(4) if not path.startswith(("state/", "offsets/3"))}
    [declared] = at.states(DECLARATIONS_STEP)
    assert (declared.key, Declaration.from_text(declared.value)) == ("total", Declaration((("k", "string"),), "plain"))
    assert held(source) == before


def test_the_import_is_in_the_run_history(source, store_dir):
    """Who took what over, into which step."""
    taken(source, store_dir)
    [entry] = json.loads(CliRunner().invoke(main, ["runs", str(store_dir), "--json"]).output)
    details = entry["details"]
    assert (entry["status"], details["what"], details["from"]) == ("succeeded", "checkpoint import", str(source))
    assert (details["step"], details["batch"], details["keys"]) == ("total", 4, 47)


def odd_job(source, name):
    describe(source, name)


def second_operator(source):
    describe(source, "dedupe", 1)
    for path in list((source / "state/0").rglob("*.delta")):
        write(source, f"state/1/{path.relative_to(source / 'state/0')}", path.read_bytes())


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda job: write(job, "offsets/5", b"v1\n{}\n0"), SparkCheckpointError, "micro-batch 5 was begun"),
        (lambda job: write(job, "offsets/9", b"v1\n{}\n0"), SparkCheckpointError, "micro-batch 9 was begun"),
        (lambda job: odd_job(job, "stateStoreSave"), UnsupportedPlanError, r"operator 0 \(stateStoreSave\) is none"),
        (lambda job: odd_job(job, "symmetricHashJoin"), UnsupportedPlanError, "is none whose state"),
        (second_operator, UnsupportedPlanError, r"2 stateful operators: 0 \(apply.*\), 1 \(dedupe\)"),
        (lambda job: shutil.rmtree(job / "state"), UnsupportedPlanError, "no stateful operator"),
        (lambda job: (job / "state/0/1/3.delta").unlink(), SparkCheckpointError, "3.delta is missing"),
        (lambda job: (job / "sources/0/4").unlink(), SparkCheckpointError, "sources/0/4 is missing"),
        (lambda job: write(job, "state/0/0/5_a1b2.delta"), UnsupportedPlanError, "format 2"),
        (lambda job: (job / "metadata").unlink(), SparkCheckpointError, "not a checkpoint of Spark"),
        (lambda job: shutil.rmtree(job), SparkCheckpointError, "there is nothing"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_cannot_be_taken_is_refused(source, store_dir, spoil, error, message, dry_run):
    """The partitions are untouched, byte for byte, and a dry run finds the same."""
    spoil(source)
    before = partition_contents(store_dir)
    with pytest.raises(error, match=message) as refused:
        taken(source, store_dir, dry_run=dry_run)
    assert refused.value.remedy
    assert partition_contents(store_dir) == before


KEY = SparkKey("a", "a", {"n": 1}, (5,))


@pytest.mark.parametrize(
    ("keys", "wanted", "event_time", "error", "message"),
    [
        ([KEY], IntoStep("total"), False, ConfigurationError, "cannot keep as it is"),
        ([KEY], IntoStep("total", same), True, UnsupportedPlanError, "they are in event time"),
        ([KEY], IntoStep("total", same), None, UnsupportedPlanError, "does not say in which time"),
        ([KEY], IntoStep("total", same, None, True), True, ConfigurationError, "says otherwise"),
        ([KEY._replace(times=(5, 6))], IntoStep("total", same), False, StateValueError, "key 'a': it has 2 timers"),
        ([KEY], IntoStep("", same), False, ConfigurationError, "name of a step"),
        ([KEY], IntoStep("$checkpoint", same), False, ConfigurationError, "name of a step"),
        ([KEY], IntoStep("total", lambda: 1), False, ConfigurationError, "neither two nor three"),
    ],
)
def test_keys_that_cannot_be_taken_are_refused(source, store_dir, keys, wanted, event_time, error, message):
    """By name; the partitions are untouched."""
    before = partition_contents(store_dir)
    with pytest.raises(error, match=message):
        taken(source, store_dir, keys, wanted, event_time=event_time)
    assert partition_contents(store_dir) == before


@pytest.mark.parametrize("event_time", [True, None, False])
def test_who_decides_about_timeouts(source, tmp_path, event_time):
    """A function of three arguments may, whatever the times are; --processing-time may where the checkpoint does not
    say; without a timeout nobody has to."""

    def moved(key, state, times):
        return state, times[0] + 1

    for number, (keys, wanted) in enumerate(
        [
            ([KEY], IntoStep("total", moved)),
            ([KEY._replace(times=())], IntoStep("total", same)),
            *([([KEY], IntoStep("total", same, None, True))] if event_time is not True else []),
        ]
    ):
        directory = tmp_path / f"db{number}"
        assert CliRunner().invoke(main, ["init", str(directory), "2"]).exit_code == 0
        assert taken(source, directory, keys, wanted, event_time=event_time).keys == 1
        assert states_in(directory)["a"] == ({"n": 1}, [6, None, 5][number])


@pytest.mark.parametrize("dry_run", [False, True])
def test_timeouts_that_cannot_be_in_processing_time(source, store_dir, dry_run):
    """Spark leaves none that was due when a micro-batch began: the user's word is wrong."""
    write(source, "offsets/4", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":100}\n{"logOffset":4}')
    keys = [KEY._replace(times=(100,)), KEY._replace(text="b", key="b", times=(99,))]
    read = lambda *_: OperatorKeys((("k", "string"),), None, None, iter(keys))  # noqa: E731
    wanted, before = IntoStep("total", same, None, True), partition_contents(store_dir)
    with pytest.raises(ConfigurationError, match="a timeout of key 'b' at 99 ms since 1970, before") as refused:
        import_into_step(place(source), Store(store_dir), "flow", wanted, read, clock=CLOCK, dry_run=dry_run)
    assert "map(key, state, times)" in refused.value.remedy
    assert partition_contents(store_dir) == before
    keys.pop()
    done = import_into_step(place(source), Store(store_dir), "flow", wanted, read, clock=CLOCK, dry_run=dry_run)
    assert done.timeouts == 1


@pytest.mark.parametrize("header", [b"", b"[]", b'{"batchTimestampMs":"x"}', b"\xff", b"[" * 100_000])
def test_a_log_of_offsets_that_spark_did_not_write(source, store_dir, header):
    """Typed, and the partitions are untouched."""
    write(source, "offsets/4", b"v1\n" + header + b'\n{"logOffset":4}')
    read = lambda *_: OperatorKeys((("k", "string"),), None, False, iter([KEY]))  # noqa: E731
    before = partition_contents(store_dir)
    with pytest.raises(SparkCheckpointError, match=r"offsets/4.* is not in the form that Spark writes") as refused:
        import_into_step(place(source), Store(store_dir), "flow", IntoStep("total", same), read, clock=CLOCK)
    assert refused.value.remedy == "Use the checkpoint as the job left it."
    assert partition_contents(store_dir) == before


def test_a_job_that_goes_on_meanwhile_is_noticed(source, store_dir):
    """The next micro-batch of the job would be in no state."""
    before = partition_contents(store_dir)

    def read(*_):
        write(source, "offsets/5", b"v1\n{}\n0")
        return OperatorKeys((("k", "string"),), None, False, iter([KEY]))

    with pytest.raises(SparkCheckpointError, match="began micro-batch 5 while") as refused:
        import_into_step(place(source), Store(store_dir), "flow", IntoStep("total", same), read, clock=CLOCK)
    assert "Stop the job" in refused.value.remedy
    assert partition_contents(store_dir) == before


def test_partitions_that_are_in_use_are_refused(source, store_dir, tmp_path):
    """Without partitions, locked, or with an epoch."""
    with pytest.raises(NoPartitionsError):
        taken(source, tmp_path / "none")
    with DirectoryLock(store_dir, CLOCK, "a run"), pytest.raises(DirectoryLockedError):
        taken(source, store_dir)
    taken(source, store_dir)
    before = partition_contents(store_dir)
    for dry_run in (False, True):
        with pytest.raises(AlreadyInitializedError, match=f"the checkpoint at {source} after micro-batch 4 already"):
            taken(source, store_dir, dry_run=dry_run)
    assert partition_contents(store_dir) == before


@pytest.mark.parametrize("first", [None, "other"])
def test_another_import_is_not_the_same_command(source, store_dir, first):
    """Nobody should run the flow on partitions without the step's state."""
    if first is None:
        import_checkpoint(place(source), Store(store_dir), "flow", clock=CLOCK)
    else:
        read = lambda *_: OperatorKeys((("k", "string"),), None, False, iter([KEY]))  # noqa: E731
        import_into_step(place(source), Store(store_dir), "flow", IntoStep("other", same), read, clock=CLOCK)
    with pytest.raises(AlreadyInitializedError, match="it holds epochs of flow 'flow', up to 1") as refused:
        taken(source, store_dir)
    assert "same command" not in str(refused.value)
    with pytest.raises(AlreadyInitializedError, match="already: epoch 1" if first is None else "holds epochs"):
        import_checkpoint(place(source), Store(store_dir), "flow", clock=CLOCK)


def test_a_dry_run_writes_nothing(source, store_dir, monkeypatch, tmp_path):
    """Not in the directory, not at the source, and nothing stays of its temporary files; its numbers are those of the
    import."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    before = everything(store_dir), everything(source)
    tried = taken(source, store_dir, dry_run=True)
    assert (everything(store_dir), everything(source)) == before
    assert list((tmp_path / "scratch").iterdir()) == []
    done = taken(source, store_dir)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert (tried.epoch, done.epoch) == (None, 1)
    assert (tried.keys, tried.timeouts, tried.batch) == (done.keys, done.timeouts, done.batch)


def test_partitions_at_owners_get_the_same(source, store_dir, tmp_path):
    """As files do: all states with their timeouts, and the position; a dry run leaves the owners as they are."""
    init_partitions(tmp_path / "made", 3)
    there, *away = spread(tmp_path / "made", [(), (0, 2), (1,)])
    token = token_file(tmp_path)
    owners = [Served(each, token) for each in away]
    store = Store(there, OwnerAccess(tuple(each.at for each in owners), token).connect(30.0))
    try:
        wanted, read = IntoStep("total", same), reading(list(keys_of(1)))
        before = [partition_contents(each) for each in away]
        tried = import_into_step(place(source), store, "flow", wanted, read, clock=CLOCK, dry_run=True)
        assert [partition_contents(each) for each in away] == before
        done = import_into_step(place(source), store, "flow", wanted, reading(list(keys_of(1))), clock=CLOCK)
        assert (done.epoch, done.keys, done.timeouts) == (1, tried.keys, tried.timeouts)
        at = store.at(1)
        assert {each.key: (json.loads(each.value), each.timeout_ms) for each in at.states("total")} == {
            each.text: (each.state, each.times[0] if each.times else None) for each in keys_of(1)
        }
        taken(source, store_dir)
        files = {each.key: each.value for each in snapshot_at(store_dir).states(CHECKPOINT_STEP)}
        assert {each.key: each.value for each in at.states(CHECKPOINT_STEP)} == files
    finally:
        store.release()
        for each in owners:
            each.stop()


@pytest.mark.parametrize(("point", "visit"), one_in(2, IMPORT_POINTS, [1, 2]))
def test_an_import_that_is_killed_can_be_repeated(source, store_dir, whole, point, visit):
    """At every step, in the first and in the second partition: all of the epoch counts, and a second import says so; or
    nothing does, and the second import is whole."""

    def work():
        die_at(point, visit)
        taken(source, store_dir)

    code = wait(child(work))
    assert code == (0 if visit == 2 and point in ("close.3", "close.4") else -signal.SIGKILL)
    if snapshot_at(store_dir).epoch == 0:
        assert taken(source, store_dir).epoch == 1
    else:
        with pytest.raises(AlreadyInitializedError, match="already"):
            taken(source, store_dir)
    assert problems(store_dir) == []
    assert states_and_position(store_dir) == whole


def run(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--map", "flow.py:moved"], 2, "need --into-step"),
        (["--dry-run"], 2, "need --into-step"),
        (["--state-type", "n long"], 2, "need --into-step"),
        (["--processing-time"], 2, "need --into-step"),
        (["--into-step", "total", "--map", "moved"], FlowLoadError.exit_code, "does not name a function"),
        (["--into-step", "total", "--map", "none.py:moved"], FlowLoadError.exit_code, "there is no file none.py"),
        (["--into-step", "total", "--map", "moves.py:gone"], FlowLoadError.exit_code, "it has no function 'gone'"),
        (["--into-step", "total", "--map", "moves.py:number"], FlowLoadError.exit_code, "it has no function 'number'"),
        (["--into-step", "total", "--map", "wrong.py:moved"], FlowLoadError.exit_code, "ZeroDivisionError"),
        (["--into-step", "total", "--map", "moves.py:moved"], NoPartitionsError.exit_code, "no such directory"),
    ],
)
def test_refusals_need_no_spark(source, tmp_path, monkeypatch, options, code, message):
    """What is wrong with the command is said before a JVM starts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moves.py").write_text("number = 5\ndef moved(key, state):\n    return state\n")
    (tmp_path / "wrong.py").write_text("1 / 0\n")
    found, output = run("checkpoint", "import", source, tmp_path / "db", "--flow", "flow", *options)
    assert (found, message in output) == (code, True), output
    assert not (tmp_path / "db").exists()


def test_every_error_has_a_way_out(source, store_dir):
    """A user who reads the error knows the next command."""
    for wanted in (IntoStep("total"), IntoStep("", same)):
        with pytest.raises(RecoveryError) as refused:
            taken(source, store_dir, [KEY], wanted)
        assert refused.value.remedy
