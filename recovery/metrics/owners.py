"""Facts of owners in Prometheus' text format: those of a service, and those of all owners of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from recovery.metrics.exposition import Family, Labels
from recovery.planning.owner_facts import OwnerFacts, SeenOwner

PREFIX = "recovery_owner"


def owner_families(owners: Sequence[tuple[Labels, OwnerFacts]]) -> Iterator[Family]:
    """Yield the metrics of owners, each with its labels. A fact that an owner does not know has no sample."""
    families: dict[str, Family] = {}
    values = [(labels, msgspec.structs.asdict(facts)) for labels, facts in owners]
    for field, shown in OwnerFacts.shown().items():
        more = {"quantile": shown.quantile} if shown.quantile else {}
        samples = [({**labels, **more}, float(each[field])) for labels, each in values if each[field] is not None]
        before = families.get(shown.metric)
        together = samples if before is None else [*before.samples, *samples]
        families[shown.metric] = Family(f"{PREFIX}_{shown.metric}", shown.kind, shown.help, together)
    yield from families.values()


def seen_families(owners: Sequence[SeenOwner]) -> Iterator[Family]:
    """Yield the metrics of a run's owners as the run last saw them, each with its address as label `owner`."""
    if owners:
        named = [({"owner": each.location}, each) for each in owners]
        yield from owner_families([(labels, each.facts) for labels, each in named])
        yield Family(
            f"{PREFIX}_clock_difference_seconds",
            "gauge",
            "How far the owner's clock is ahead of that of the run's host.",
            [(labels, each.clock_difference_s) for labels, each in named],
        )
        yield Family(
            f"{PREFIX}_answer_seconds",
            "gauge",
            "Time until the owner answered the run's last question for its facts.",
            [(labels, each.answer_s) for labels, each in named],
        )
