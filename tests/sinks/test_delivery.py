"""How the driver hands micro-batches and epochs to sinks of every kind. Nothing here starts Spark."""

from __future__ import annotations

import errno
import re
import threading
from dataclasses import replace

import pytest

import recovery.sinks
from recovery.base.ids import Lease
from recovery.base.reserved import SINK_STEP
from recovery.errors import ConfigurationError, FlowFailedError, SinkFailedError, SinkRefusedError, StaleDirectoryError
from recovery.sinks.delivery import NOTE_KEY, Delivery
from recovery.sinks.plain import DiscardSink
from recovery.sinks.protocol import BatchContext, EpochOutput, EpochSink, Resume, current_batch

LEASE = Lease(3, "cafe")


def resume(epoch=5, note=None, timeline=()):
    return Resume(epoch, note, LEASE, "store", "flow", 0, timeline)


class Recording:
    """An EpochSink that notes its calls, and raises the error that a test gave it."""

    single_action = True

    def __init__(self, **raises):
        self.calls = []
        self.raises = raises

    def _call(self, name, value):
        self.calls.append((name, value))
        if name in self.raises:
            raise self.raises[name]

    def check(self, value):
        self._call("check", value)

    def rollback(self, value):
        self._call("rollback", value)

    def write(self, batch, batch_id):
        self._call("write", (batch, batch_id))

    def prepare(self, output):
        self._call("prepare", output)
        return f"note {output.epoch}"

    def publish(self, output):
        self._call("publish", output)

    def release(self):
        self._call("release", None)


def test_the_phases_in_their_order():
    """check, rollback, write, prepare, publish, release; the note becomes a row of the reserved step."""
    sink = Recording()
    assert isinstance(sink, EpochSink)
    delivery = Delivery(sink, resume(), recoverable=True)
    delivery.rollback()
    delivery.write("frame", 7, 5)
    assert delivery.prepare(5, 7, 2) == {SINK_STEP: {NOTE_KEY: "note 5"}}
    delivery.publish(5, 7, 2)
    delivery.release()
    output = EpochOutput(5, 7, LEASE, "store", "flow", 2)
    assert sink.calls == [
        ("check", resume()), ("rollback", resume()), ("write", ("frame", 7)), ("prepare", output), ("publish", output),
        ("release", None),
    ]  # fmt: skip


@pytest.mark.parametrize("phase", ["check", "rollback"])
def test_a_sink_that_makes_the_start_fail_is_released(phase):
    """What it has opened by then does not stay open."""

    class Failing(Recording):
        def _call(self, name, value):
            super()._call(name, value)
            if name == phase:
                raise OSError("no target")

    sink = Failing()
    with pytest.raises(SinkFailedError, match="no target"):
        Delivery(sink, resume(), recoverable=True).rollback()
    assert [name for name, _ in sink.calls][-2:] == [phase, "release"]


def test_functions_and_plain_objects_only_write():
    """They have no part in closing epochs, and put nothing into the partitions; they run without recovery too."""
    seen = []

    class Plain:
        def write(self, batch, batch_id):
            seen.append((batch, batch_id))

    for sink in (lambda *call: seen.append(call), Plain()):
        delivery = Delivery(sink, resume(), recoverable=False)
        assert not delivery.single_action
        delivery.rollback()
        delivery.write("frame", 1, 5)
        assert delivery.prepare(5, 1, 0) == {}
        delivery.publish(5, 1, 0)
        delivery.release()
    assert seen == [("frame", 1)] * 2


PUBLIC = [
    getattr(recovery.sinks, name)
    for name in recovery.sinks.__all__
    if name.endswith("Sink") and name not in ("EpochSink", "Sink")
]


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_each_sink_declares_what_it_does_with_a_batch(kind):
    """A sink of the package that declares nothing would only be slower, and nobody would see it."""
    assert all(any(name in vars(each) for each in kind.__mro__) for name in ("single_action", "keeps_plan"))


def test_a_sink_that_takes_part_declares_how_often_it_reads():
    """Undeclared, it would silently get a copy of every micro-batch."""

    class Undeclared:
        check = release = rollback = prepare = publish = write = lambda self, *_: None

    with pytest.raises(ConfigurationError, match="Undeclared does not declare single_action") as raised:
        Delivery(Undeclared(), resume(), recoverable=True)
    assert "single_action = False" in raised.value.remedy


def test_another_write_is_not_what_the_class_below_declared():
    """A subclass may change the plan, and says so by declaring nothing."""

    class Filtering(DiscardSink):
        def write(self, batch, batch_id):
            super().write(batch.where("x > 0"), batch_id)

    class Same(DiscardSink):
        pass

    class Declaring(Filtering):
        discards = True

    found = {
        kind: (delivery.single_action, delivery.keeps_plan, delivery.discards)
        for kind in (DiscardSink, Same, Filtering, Declaring)
        for delivery in [Delivery(kind(), resume(), recoverable=False)]
    }
    assert found == {
        DiscardSink: (True, True, True),
        Same: (True, True, True),
        Filtering: (True, False, False),
        Declaring: (True, False, True),
    }


def test_a_sink_knows_the_batch_it_writes():
    """current_batch() names micro-batch, epoch and execution while the sink runs, and fails everywhere else."""
    seen = []
    Delivery(lambda *_: seen.append(current_batch()), resume(), recoverable=True).write("frame", 7, 5)
    assert seen == [BatchContext(7, 5, 3, "cafe", "store", "flow")]
    with pytest.raises(ConfigurationError, match="no micro-batch"):
        current_batch()

    refused = []

    def ask():
        with pytest.raises(ConfigurationError, match="no micro-batch"):
            current_batch()
        refused.append(True)

    def elsewhere(*_):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    Delivery(elsewhere, resume(), recoverable=True).write("frame", 8, 5)
    assert refused == [True]


def test_ids_for_sinks_that_skip_what_they_have_seen():
    """A replayed micro-batch and a re-used epoch number come under another name, as another execution has them."""

    def names(lease):
        batch = BatchContext(7, 5, lease.number, lease.id, "store", "flow")
        epoch = EpochOutput(5, 7, lease, "store", "flow", 0)
        return {(batch.app_id, batch.version), (epoch.app_id, epoch.version)}

    assert len(names(LEASE) | names(Lease(4, "beef"))) == 4
    assert names(LEASE) == names(LEASE)


def test_some_phases_are_not_enough():
    """A sink that can prepare but not roll back would lose or double output: refused by what it lacks."""

    class Half:
        def write(self, batch, batch_id): ...
        def publish(self, output): ...

    with pytest.raises(ConfigurationError, match="Half has no method rollback and no prepare"):
        Delivery(Half(), resume(), recoverable=True)


def test_without_recovery_no_epoch_is_ever_published():
    """So a sink that publishes by epoch is refused instead of keeping everything to itself."""
    with pytest.raises(ConfigurationError, match="without recovery"):
        Delivery(Recording(), resume(), recoverable=False)


PHASES = {
    "check": lambda delivery: None,
    "rollback": lambda delivery: delivery.rollback(),
    "prepare": lambda delivery: delivery.prepare(5, 7, 0),
    "publish": lambda delivery: delivery.publish(5, 7, 0),
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (RuntimeError("away"), SinkFailedError),
        (OSError("full"), SinkFailedError),
        (PermissionError(errno.EACCES, "barred"), SinkRefusedError),
        (FlowFailedError("own"), FlowFailedError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_errors_are_typed(phase, raised, kind):
    """Whatever a sink raises in a phase becomes a typed error that names the phase."""
    with pytest.raises(kind, match=re.escape(str(raised))):
        PHASES[phase](Delivery(Recording(**{phase: raised}), resume(), recoverable=True))


def test_nothing_is_prepared_after_a_failed_publish():
    """Its output waits for the next run; preparing a later epoch would let that one overtake it."""
    sink = Recording(publish=RuntimeError("away"))
    delivery = Delivery(sink, resume(), recoverable=True)
    delivery.prepare(5, 7, 0)
    for _ in range(2):
        with pytest.raises(
            SinkFailedError, match=r"Recording\.publish failed, publishing the output of closed epoch 5"
        ):
            delivery.publish(5, 7, 0)
    with pytest.raises(SinkFailedError, match="publishing the output of closed epoch 5"):
        delivery.prepare(6, 8, 0)
    assert [name for name, _ in sink.calls].count("prepare") == 1


def test_a_note_is_a_text():
    """Anything else would not come back from the partitions as it was."""

    class Numb(Recording):
        def prepare(self, output):
            return 5

    with pytest.raises(ConfigurationError, match="returned int, not the text of a note"):
        Delivery(Numb(), resume(), recoverable=True).prepare(5, 7, 0)


async def later(*_):
    pass


def test_a_sink_that_returns_its_work_has_written_nothing():
    """The micro-batch fails, whatever kind of work it is; a coroutine that never ran is not passed over in silence."""
    for sink in (lambda *_: later(), lambda *_: (each for each in ()), lambda *_: map(print, [])):
        with pytest.raises(FlowFailedError, match=r"the sink returned a .*, for micro-batch 7: it has written nothing"):
            Delivery(sink, resume(), recoverable=True).write("frame", 7, 5)


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_that_returns_its_work_has_done_nothing(phase):
    """A typed error where the phase is called; refused before, where the method shows it."""

    class Lazy(Recording):
        pass

    setattr(Lazy, phase, lambda self, value: later())
    with pytest.raises(ConfigurationError, match=rf"Lazy\.{phase} returned a coroutine"):
        PHASES[phase](Delivery(Lazy(), resume(), recoverable=True))
    setattr(Lazy, phase, later)
    with pytest.raises(ConfigurationError, match=rf"Lazy\.{phase} is an asynchronous function"):
        Delivery(Lazy(), resume(), recoverable=True)


def test_what_is_taken_back_of_executions_that_are_not_known():
    """Refused, unless the user says that it may be lost; then it is said."""
    said = []
    known = replace(resume(), executions=frozenset({"ours"}), say=said.append)
    with pytest.raises(
        StaleDirectoryError, match=r"execution 9 \(theirs\) on elsewhere has written to it, up to epoch 7"
    ):
        known.check_known("theirs", "out", number=9, host="elsewhere", epoch=7)
    loses = replace(known, loses=True)
    loses.check_known("ours", "out")
    assert said == []
    loses.check_known("theirs", "out", number=9, epoch=7)
    assert said == [
        "out: execution 9 (theirs) has written to it, up to epoch 7; this directory does not know that execution; "
        "output that this directory does not know is taken back"
    ]


def test_what_is_taken_back_by_an_older_copy():
    """It knows the execution, and not all that it has shown. Epochs of executions before are known to be abandoned."""
    copy = replace(resume(), executions=frozenset({"before", "last"}), held=("last", 4))
    for execution, epoch in (("last", 0), ("last", 4), ("before", 9)):
        copy.check_known(execution, "out", epoch=epoch)
    with pytest.raises(StaleDirectoryError, match="this directory has that execution only up to epoch 4"):
        copy.check_known("last", "out", epoch=5)
