"""Targets and their levels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.errors import ConfigurationError
from recovery.planning.health import DEFAULTS, Level, findings, of_epoch, parse_size, parse_targets, unsaved_s, worst
from recovery.planning.measures import Measure, OperatorWork, StepSize
from recovery.planning.replica import ReplicaLag
from recovery.planning.values import Execution


def measured(epoch=1, execution=1, **fields):
    """A measure of an epoch."""
    return Measure(execution=execution, epoch=epoch, measured_ms=0, resume_s=0.1, **fields)


def work(**fields):
    """What Spark reported of an operator of its own."""
    return OperatorWork(**fields)


def values(found):
    """By target, as people see them, without the title."""
    return {each.target.name: str(each).removeprefix(f"{each.target.title} ") for each in found}


def levels(found):
    """By target, those that are known."""
    return {each.target.name: each.level for each in found if each.level is not Level.UNKNOWN}


def test_the_defaults():
    """State 1 GB/5 GB, snapshot 10 s/30 s, latency 10 ms/50 ms, clean-up 5 s/15 s, memory 2 GB/4 GB, replica lag
    1 min/5 min, source lag 10 min/1 h; no backup lag."""
    assert {t.name: (t.warning, t.critical) for t in DEFAULTS} == {
        "state-size": (1e9, 5e9), "snapshot-duration": (10, 30), "update-latency": (0.010, 0.050),
        "cleanup-time": (5, 15), "memory": (2e9, 4e9), "backup-lag": (None, None), "replica-lag": (60, 300),
        "replica-epochs": (4, 60),
        "source-lag": (600, 3600), "wait": (30, 300), "quarantine": (0, 7 * 86400), "owner-call": (1, 10),
        "owner-closing": (10, 30), "owner-clock": (5, 60),
        "owner-disk": (2e9, 500e6), "certificate": (14 * 86400, 3 * 86400),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "name", "level"),
    [
        ({"snapshot_s": 9.9}, "snapshot-duration", Level.OK),
        ({"snapshot_s": 10.0}, "snapshot-duration", Level.WARNING),
        ({"snapshot_s": 30.0}, "snapshot-duration", Level.CRITICAL),
        ({"looked_up": 100, "seam_s": 2.0}, "update-latency", Level.WARNING),
        ({"native": {0: work(updated=200, update_s=20.0)}}, "update-latency", Level.CRITICAL),
        ({"native": {0: work(remove_s=3.0), 1: work(remove_s=3.0)}}, "cleanup-time", Level.WARNING),
        ({"collect_s": 15.0}, "cleanup-time", Level.CRITICAL),
        ({"memory_driver_bytes": 10**9, "memory_workers_bytes": 10**9}, "memory", Level.WARNING),
        ({"memory_driver_bytes": 10**9, "memory_jvm_bytes": 10**10}, "memory", Level.CRITICAL),
        ({"memory_driver_bytes": 10**8, "memory_jvm_bytes": 10**9}, "memory", Level.OK),
        ({"steps": {"a": StepSize(1, 6 * 10**9)}}, "state-size", Level.CRITICAL),
    ],
)
def test_levels_of_an_epoch(fields, name, level):
    """A level counts as reached when the value is as high; the memory includes the JVM's."""
    assert levels(of_epoch(measured(**fields), DEFAULTS))[name] is level


def test_what_is_not_measured_is_not_known():
    """Neither good nor bad."""
    found = findings([], DEFAULTS, state_bytes=None, backup_lag_s=None)
    assert levels(found) == {}
    assert worst(found) is Level.UNKNOWN


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, {"update-latency", "memory"}),
        ({"native": None}, {"update-latency", "cleanup-time", "memory"}),
        ({"native": None, "looked_up": 1000, "seam_s": 1.0}, {"update-latency", "cleanup-time", "memory"}),
        # An earlier version of this package recorded only the rows of the operators.
        ({"operators": {0: 5}}, {"update-latency", "cleanup-time", "memory"}),
        ({"memory_driver_bytes": 5}, {"update-latency", "memory"}),
    ],
)
def test_what_was_measured_only_in_part_is_not_measured(fields, names):
    """It says so, and never "ok"."""
    found = findings([measured(**fields)], DEFAULTS, state_bytes=5, backup_lag_s=None)
    assert {name for name, value in values(found).items() if value == "not measured"} == {*names, "backup-lag"}
    assert not names & levels(found).keys()
    assert {each.note for each in found if each.value is None} == {"not measured"}


def test_a_part_that_alone_reaches_a_level_counts():
    """The whole is at least as high."""
    found = findings([measured(native=None, collect_s=7.0)], DEFAULTS, state_bytes=5, backup_lag_s=None)
    assert values(found)["cleanup-time"] == "7 s (warning from 5 s)"


def test_few_keys_give_no_latency_level():
    """Most of the latency is opening files then. Epochs with enough keys count alone."""
    few = measured(looked_up=3, seam_s=1.0, batches=1)
    enough = measured(2, looked_up=200, seam_s=1.0, batches=2)
    [found] = [each for each in of_epoch(few, DEFAULTS) if each.target.name == "update-latency"]
    assert str(found) == "state update latency 333 ms (no level for so few keys)"
    assert found.level is Level.UNKNOWN
    both = findings([few, enough], DEFAULTS, state_bytes=0, backup_lag_s=None)
    assert values(both)["update-latency"] == "5 ms"
    assert levels(of_epoch(measured(looked_up=200, seam_s=9.0, batches=3), DEFAULTS)).keys() == {
        "state-size", "snapshot-duration", "cleanup-time",
    }  # fmt: skip


def test_backups_that_never_succeeded():
    """Where the lag is watched it counts from the first execution on, as if a backup had been made just before."""

    def began(started_ms):
        return Execution(1, "e", "flow", 1, started_ms, 1.0, 1.0, "host", 1, "1")

    assert unsaved_s([], 9) is None
    age_s = unsaved_s([began(5_000), began(9_000)], 7_205_000)
    assert age_s == 7200
    watched = parse_targets({"backup-lag": "2h/1d"})
    for lag_s, targets, level in (
        (None, watched, Level.WARNING),
        (60.0, watched, Level.OK),
        (None, DEFAULTS, Level.UNKNOWN),
    ):
        found = findings([], targets, state_bytes=None, backup_lag_s=lag_s, unsaved_s=age_s)
        assert worst(found) is level
    assert found[-1].value is None


def test_the_highest_of_the_newest_ten_counts():
    """Of the newest execution alone; older epochs are forgiven."""
    old = [measured(n, snapshot_s=99.0) for n in range(1, 4)]
    new = [measured(n, 2, snapshot_s=20.0 if n == 4 else 1.0) for n in range(4, 14)]
    assert levels(findings([*old, *new], DEFAULTS, state_bytes=0, backup_lag_s=None))["snapshot-duration"] == "warning"
    later = [*old, *new, measured(14, 2, snapshot_s=1.0)]
    assert levels(findings(later, DEFAULTS, state_bytes=0, backup_lag_s=None))["snapshot-duration"] == "ok"


def test_levels_can_be_set():
    """As text, as a pair, or off; the others keep theirs."""
    targets = {t.name: t for t in parse_targets(
        {"snapshot-duration": "500ms/2m", "memory": ("1GiB", 4e9), "cleanup-time": "off", "backup-lag": "1h/1d"}
    )}  # fmt: skip
    assert (targets["snapshot-duration"].warning, targets["snapshot-duration"].critical) == (0.5, 120)
    assert (targets["memory"].warning, targets["memory"].critical) == (2**30, 4e9)
    assert targets["cleanup-time"].level(1e9) is Level.UNKNOWN
    assert targets["backup-lag"].level(7200) is Level.WARNING
    assert targets["state-size"].warning == 1e9


@pytest.mark.parametrize(
    "given_levels",
    [{"speed": "1/2"}, {"memory": "4GB/2GB"}, {"memory": "2GB"}, {"memory": "1/2/3"}, {"memory": "a lot/more"},
     {"cleanup-time": "1GB/2GB"}, {"memory": 5}, {"memory": "-1/2"}, {"snapshot-duration": (float("nan"), 1)}],
)  # fmt: skip
def test_what_is_no_threshold_is_refused(given_levels):
    """With what to write instead."""
    with pytest.raises(ConfigurationError) as raised:
        parse_targets(given_levels)
    assert raised.value.remedy


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e12))
def test_a_higher_value_never_stands_better(a, b, value):
    """For any two levels in order."""
    [target] = [t for t in parse_targets({"state-size": (min(a, b), max(a, b))}) if t.name == "state-size"]
    assert target.level(value).severity <= target.level(value * 2 + 1).severity


@pytest.mark.parametrize(("text", "size"), [("500", 500), ("1kB", 1000), ("1.5 GB", 1.5e9), ("2GiB", 2**31), (7, 7)])
def test_sizes(text, size):
    """Decimal units, and binary ones with an i."""
    assert parse_size(text) == size


def test_a_size_that_is_no_number():
    """Too great for one."""
    with pytest.raises(ConfigurationError, match="not a size"):
        parse_size("9" * 400)


def test_a_finding_says_its_level():
    """For people."""
    [found] = [each for each in of_epoch(measured(snapshot_s=12.3), DEFAULTS) if each.level.severity]
    assert str(found) == "snapshot duration 12.3 s (warning from 10 s)"


def test_the_lag_of_a_replica_counts_where_there_is_one():
    """Without one there is no finding."""
    assert "replica-lag" not in levels(findings([], DEFAULTS, state_bytes=None, backup_lag_s=None))
    for lag_s, level in ((0.0, Level.OK), (60.0, Level.WARNING), (300.0, Level.CRITICAL)):
        found = findings([], DEFAULTS, state_bytes=None, backup_lag_s=None, replica=ReplicaLag(1, lag_s))
        assert levels(found)["replica-lag"] == level


def test_an_age_that_is_not_known_is_a_warning():
    """Something dated an hour ahead may be of any age; a certificate whose end has passed is no age."""
    watched = parse_targets({"backup-lag": "2h/1d"})
    for targets, level, shown in ((watched, Level.WARNING, "warning: dated"), (DEFAULTS, Level.UNKNOWN, "dated")):
        [found] = [
            each
            for each in findings([], targets, state_bytes=None, backup_lag_s=-3600.0)
            if each.target.name == "backup-lag"
        ]
        assert found.level is level
        assert str(found) == f"backup lag not known ({shown} 1 h ahead of this host's clock)"
        assert found.as_json().items() >= {"value": -3600.0, "text": "not known", "note": found.note}.items()
    found = findings(
        [], DEFAULTS, state_bytes=None, backup_lag_s=None, replica=ReplicaLag(1, -3600.0), wait_s=-60.1,
        quarantine_s=-3600.0,
    )  # fmt: skip
    for name in ("replica-lag", "wait", "quarantine"):
        assert levels(found)[name] == "warning"
    [certificate] = [each for each in DEFAULTS if each.name == "certificate"]
    assert (certificate.level(-1.0), certificate.shown(-1.0)) == (Level.CRITICAL, "0 s")


def test_a_replica_that_does_not_keep_up_is_found_by_its_epochs():
    """At an epoch a second, three epochs are far from a minute: their number has levels of its own."""
    for epochs, level in ((3, Level.OK), (4, Level.WARNING), (60, Level.CRITICAL)):
        found = findings([], DEFAULTS, state_bytes=None, backup_lag_s=None, replica=ReplicaLag(epochs, epochs / 10))
        assert levels(found)["replica-epochs"] == level
    [changed] = [each for each in parse_targets({"replica-epochs": "10/100"}) if each.unit == "epochs"]
    assert (changed.warning, changed.critical) == (10, 100)
    for levels_given in ("10s/20s", "-1/5", "1.5/2", "1" * 20 + "/5"):
        with pytest.raises(ConfigurationError, match="not a number of epochs"):
            parse_targets({"replica-epochs": levels_given})
