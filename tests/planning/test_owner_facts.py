"""What owners say of themselves, and which of that is a finding."""

from __future__ import annotations

import msgspec
import pytest

from recovery.planning.health import DEFAULTS, Level, parse_targets
from recovery.planning.owner_facts import OWNER_ADVICE, OwnerFacts, SeenOwner, owner_findings

DAY_S = 86_400


def owner(location: str, *, clock_s: float = 0, **facts: float) -> SeenOwner:
    return SeenOwner.of(location, "", OwnerFacts(clock_ms=1_000_000, **facts), 0.2, round(1_000_100 - clock_s * 1000))


def test_the_clock_was_read_half_way():
    assert owner("h1").clock_difference_s == 0
    assert owner("h1", clock_s=-7).clock_difference_s == -7


def test_a_slow_answer_is_no_difference_of_clocks():
    seen = SeenOwner.of("h1", "", OwnerFacts(clock_ms=0), 100.0, 0)
    assert seen.clock_difference_s == 50
    [found] = [each for each in owner_findings([seen], DEFAULTS) if each.target.name == "owner-clock"]
    assert (found.value, found.level) == (0, Level.OK)


def test_each_finding_names_the_worst_owner():
    """Whether its value is the highest or the lowest."""
    owners = [
        owner("h1", call_p99_s=0.1, close_s=12.0, disk_free_bytes=10**12, certificate_end_s=40 * DAY_S),
        owner("h2", call_p99_s=20, disk_free_bytes=10**9, certificate_end_s=10 * DAY_S, clock_s=-70),
        owner("h3"),
    ]
    found = {each.target.name: each for each in owner_findings(owners, DEFAULTS)}
    assert {name: (each.where, each.level) for name, each in found.items()} == {
        "owner-call": ("h2", Level.CRITICAL), "owner-clock": ("h2", Level.CRITICAL),
        "owner-closing": ("h1", Level.WARNING),
        "owner-disk": ("h2", Level.WARNING), "certificate": ("h2", Level.WARNING),
    }  # fmt: skip
    assert str(found["owner-call"]) == "call of owner h2 20 s (critical from 10 s)"
    assert str(found["certificate"]) == "end of certificate of h2 10 d (warning up to 14 d)"
    assert found["certificate"].is_worse(owner_findings(owners[:1], DEFAULTS)[-1])
    assert set(found) == set(OWNER_ADVICE)


def test_an_ended_certificate_is_critical():
    [found] = [each for each in owner_findings([owner("h1", certificate_end_s=-5.0)], DEFAULTS) if each.value == -5.0]
    assert (found.level, str(found)) == (Level.CRITICAL, "end of certificate of h1 0 s (critical up to 3 d)")


def test_levels_that_a_user_gives():
    """Where less is worse, the warning level is the higher one."""
    targets = parse_targets({"owner-disk": "50GB/10GB", "owner-call": "off"})
    found = {each.target.name: each.level for each in owner_findings([owner("h1", disk_free_bytes=20e9)], targets)}
    assert found["owner-disk"] is Level.WARNING
    with pytest.raises(ValueError, match=r"the warning level 10\.0 GB is below 50\.0 GB"):
        parse_targets({"owner-disk": "10GB/50GB"})


def test_every_fact_is_shown():
    """But for the clock, which is compared."""
    assert set(OwnerFacts.shown()) == set(OwnerFacts.__struct_fields__) - {"clock_ms"}
    facts = OwnerFacts(clock_ms=1, held=True, call_p50_s=0.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=OwnerFacts) == facts
