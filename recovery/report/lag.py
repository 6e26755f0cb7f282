"""How much input the newest epoch lacks, as a table of the page."""

from __future__ import annotations

from recovery.base.intervals import format_interval
from recovery.base.wording import counted, moment_text
from recovery.report.facts import Facts
from recovery.report.html import Cell, section, table
from recovery.report.text import escaped


def lag_section(facts: Facts) -> str:
    """Return what the newest run has seen beyond its newest epoch; nothing if no source says how much there is."""
    lag = facts.lag
    if lag is None or not lag.sources:
        return ""
    lead = f"What epoch {lag.epoch:,} lacked of the input when the run last looked, {moment_text(lag.seen_ms)}."
    rows: list[list[Cell]] = [
        [
            each.name, each.source if each.topic else None, counted(each.behind, each.unit),
            f"{each.most}: {each.most_behind:,}" if each.topic else None, format_interval(round(each.seconds)),
        ]
        for each in lag.sources
    ]  # fmt: skip
    header = ("source", "brokers", "behind", "most in partition", "lacking since")
    note = ""
    if lag.group is not None:
        shown = f"does not show the offsets: {lag.problem}" if lag.problem else "shows the offsets to tools of Kafka"
        note = f'<p class="note">{escaped(f"Consumer group {lag.group} {shown}.")}</p>'
    return section("Source lag", lead, table(header, rows), note)
