"""The page: one self-contained HTML file, from the facts about a directory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib.resources import files

from recovery.backup.drills import drill_text
from recovery.base.version import installed_version
from recovery.base.wording import age_s, ago, counted, moment_text
from recovery.errors import with_path
from recovery.host.processes import describe_holder
from recovery.planning.advice import Advice
from recovery.planning.going_back import after_text
from recovery.planning.health import Finding, Level, format_bytes, format_seconds, worst
from recovery.planning.lanes import Lane
from recovery.report.charts import meter, share_bar
from recovery.report.facts import Facts, lanes_of
from recovery.report.html import joined, section
from recovery.report.lag import lag_section
from recovery.report.owners import owners_section
from recovery.report.partitions import partitions_section
from recovery.report.quarantine import WaitedBefore, quarantine_section
from recovery.report.text import escaped, format_count, shortened
from recovery.report.timeline import timeline_section
from recovery.report.trends import trends_section

RESERVED = "$"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
MARK = (
    '<svg viewBox="0 0 20 20" aria-hidden="true"><rect x="1" y="2" width="18" height="4" rx="2" fill="var(--accent)"/>'
    '<rect x="1" y="8" width="12" height="4" rx="2" fill="var(--accent)" opacity=".65"/>'
    '<rect x="1" y="14" width="7" height="4" rx="2" fill="var(--accent)" opacity=".35"/></svg>'
)
HATCH = (
    '<svg class="defs" width="0" height="0" aria-hidden="true"><defs><pattern id="hatch" width="6" '
    'height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" '
    'fill="var(--card)"/><rect width="2.5" height="6" fill="var(--gone)"/></pattern></defs></svg>'
)


def page(
    facts: Facts,
    advice: Advice,
    largest: Sequence[tuple[str, str, int]],
    waited: WaitedBefore | None = None,
) -> str:
    """Return the whole page as text. Everything that comes from the directory is escaped. waited: what was in
    quarantine at an older epoch; None: not known."""
    flow = next((d.flow_id for d in facts.described if d.flow_id), None)
    title = flow or facts.directory.name or str(facts.directory)
    drawn = lanes_of(facts)
    parts = [
        _alarm(facts),
        _tiles(facts, drawn),
        timeline_section(facts, drawn),
        partitions_section(facts),
        trends_section(facts),
        lag_section(facts),
        owners_section(facts),
        quarantine_section(facts, waited),
        _health(facts.health),
        _steps(facts),
        _largest(largest),
        _advice(advice),
    ]
    style, script = ((files("recovery.report") / name).read_text() for name in ("style.css", "script.js"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escaped(title)} · recovery</title>\n<style>\n{style}</style>\n</head>\n<body>\n{HATCH}\n"
        f"{_header(facts, title)}\n<main>\n{joined(parts)}\n</main>\n"
        f"<footer>Made {escaped(moment_text(facts.now_ms))} by recovery {escaped(installed_version())} from "
        f"<code>{escaped(facts.directory)}</code>. Times are local to the machine that made it, "
        "with their offset from UTC.</footer>\n"
        f'<div id="tip" role="status"></div>\n<script>\n{script}</script>\n</body>\n</html>\n'
    )


def _header(facts: Facts, title: str) -> str:
    stores = sorted({d.store_id for d in facts.described})
    count = max((d.count for d in facts.described), default=0)
    level = worst(facts.health) if facts.epochs else Level.UNKNOWN
    if facts.problem is not None or facts.problems:
        level = Level.CRITICAL
    word = {Level.OK: "healthy", Level.UNKNOWN: "nothing measured yet", Level.CRITICAL: "needs attention"}
    said = "damaged" if facts.problems else "cannot be resumed" if facts.problem else word.get(level, "warning")
    running = ""
    if facts.holder:
        running = f" · in use by {escaped(describe_holder(facts.holder))}"
    partitions = counted(count, "partition")
    notes = [facts.origins[0].text(moment_text)] if facts.origins else []
    notes += [f"{name} is a link to {real}" for name, real in facts.links.items()]
    origin = "".join(f'<p class="sub">{escaped(note)}</p>' for note in notes)
    return (
        f'<header><div class="brand">{MARK}recovery</div><div class="head"><div><h1><bdi>{escaped(shortened(title))}'
        f'</bdi></h1><p class="sub">store {escaped(", ".join(stores) or "not known")} · {partitions}{running}</p>'
        f'{origin}</div><span class="pill {level}">{escaped(said)}</span></div></header>'
    )


def _alarm(facts: Facts) -> str:
    if facts.problem is None and not facts.problems:
        return ""
    items = "".join(f"<li>{escaped(each)}</li>" for each in facts.problems)
    listed = f"<ul>{items}</ul>" if items else ""
    if facts.problem is None:
        return f'<section class="alarm"><h2>A part could not be read</h2>{listed}</section>'
    error = facts.problem
    return (
        f'<section class="alarm"><h2>It cannot be resumed</h2><p>{escaped(with_path(error.found, error.path))}</p>'
        f"<p>Probable cause: {escaped(error.cause)}</p><p>What to do: {escaped(error.remedy)}</p>{listed}</section>"
    )


def _tiles(facts: Facts, drawn: Sequence[Lane]) -> str:
    plan, epochs = facts.plan, facts.epochs
    resume = f"epoch {plan.resume_epoch:,}" if plan else "–"
    snapshot = plan.snapshot if plan else None
    age = "the beginning" if plan else "not possible"
    if snapshot:
        age = f"{after_text(snapshot.epoch)}, closed {ago(age_s(snapshot.closed_ms, facts.now_ms))}"
    held = plan.window if plan else ()
    window = f"after epoch {held[0]:,} – {held[-1]:,}" if len(held) > 1 else "–"
    back = f"{counted(len(held), 'snapshot')} shared by all" if len(held) > 1 else "only one snapshot is kept"
    size = facts.state_bytes
    recent = [measure.snapshot_s for measure in epochs[-10:]]
    rewinds = sum(lane.rewound > 0 for lane in drawn)
    abandoned = sum(lane.abandoned for lane in drawn)
    backup = facts.backup
    tiles = [
        ("A run resumes at", resume, age),
        ("Can go back to", window, back),
        ("State", format_bytes(size) if size is not None else "not known", _keys_text(facts)),
        ("A snapshot takes", format_seconds(statistics.median(recent)) if recent else "–", "median of the newest ten"),
        (
            "Executions",
            f"{len(drawn):,}",
            f"{counted(rewinds, 'rewind')}, {counted(abandoned, 'epoch')} abandoned" if rewinds else "no rewinds",
        ),
        (
            "Last backup",
            ago(age_s(backup.finished_ms, facts.now_ms)) if backup else "none",
            (f"of epoch {backup.epoch:,}" if backup else "recorded here")
            + f"; last drill: {drill_text(facts.drill, facts.now_ms)}",
        ),
    ]
    cards = "".join(
        f'<div class="tile"><span>{escaped(name)}</span><b>{escaped(value)}</b><span>{escaped(note)}</span></div>'
        for name, value, note in tiles
    )
    return f'<div class="tiles">{cards}</div>'


def _health(found: Sequence[Finding]) -> str:
    lead = "The highest value in the newest ten epochs of the last execution, against the configured levels."
    cards = []
    for each in found:
        t = each.target
        if t.warning is None or t.critical is None:
            limits, picture = "no levels set", ""
        else:
            limits = f"warning {t.reached} {t.shown(t.warning)}, critical {t.reached} {t.shown(t.critical)}"
            drawn = each.value is not None and not t.low and not t.is_ahead(each.value)
            picture = meter(each.value or 0, t.warning, t.critical, str(each.level), str(each)) if drawn else ""
        level = each.note or ("not watched" if t.warning is None else str(each.level))
        title = f"{each.title[0].upper()}{each.title[1:]}"
        cards.append(
            f'<div class="target"><div class="row"><h3>{escaped(title)}</h3><span class="pill {each.level}">'
            f"{escaped(level)}</span></div><b>{escaped(t.shown(each.value))}</b>{picture}"
            f'<p class="limits">{escaped(limits)}</p></div>'
        )
    return section("Health", lead, f'<div class="targets">{"".join(cards)}</div>')


def _steps(facts: Facts) -> str:
    lead = "The live state of each step: rows, and the bytes of their keys and values."
    steps = sorted(facts.steps.items(), key=lambda item: (-item[1].size_bytes, item[0]))
    if not steps:
        return ""
    largest = max(1, steps[0][1].size_bytes)
    rows = "".join(
        f'<tr><td class="name"><code><bdi>{escaped(shortened(step))}</bdi></code>'
        f"{' <span class=note>the run’s own</span>' if step.startswith(RESERVED) else ''}</td>"
        f'<td class="bar">{share_bar(size.size_bytes / largest)}</td><td class="n">{size.rows:,}</td>'
        f'<td class="n">{escaped(format_bytes(size.size_bytes))}</td>'
        f'<td class="n">{escaped(format_bytes(size.size_bytes / size.rows) if size.rows else "–")}</td></tr>'
        for step, size in steps
    )
    numbers = "".join(f'<th class="n">{name}</th>' for name in ("keys", "size", "a key"))
    header = f'<tr><th>step</th><th class="bar"></th>{numbers}</tr>'
    return section("Biggest steps", lead, f'<div class="table"><table>{header}{rows}</table></div>')


def _largest(largest: Sequence[tuple[str, str, int]]) -> str:
    if not largest:
        return ""
    lead = "The keys with the largest state in the newest snapshot."
    most = max(1, largest[0][2])
    rows = "".join(
        f'<tr><td class="name key"><code><bdi>{escaped(shortened(key, 80))}</bdi></code></td>'
        f'<td class="name"><code><bdi>{escaped(shortened(step, 60))}</bdi></code></td>'
        f'<td class="bar">{share_bar(size / most)}</td><td class="n">{escaped(format_bytes(size))}</td></tr>'
        for step, key, size in largest
    )
    header = '<tr><th>key</th><th>step</th><th class="bar"></th><th class="n">size</th></tr>'
    return section("Biggest keys", lead, f'<div class="table"><table>{header}{rows}</table></div>')


def _advice(advice: Advice) -> str:
    said = []
    if advice.interval is not None:
        interval = advice.interval
        tolerated = format_seconds(interval.tolerate_s)
        head = f"Snapshot interval: {format_seconds(interval.proposed.interval_s)}, to recover within {tolerated}"
        said.append((head, interval.why))
    said.append((f"Partitions: {advice.partitions.proposed:,}", advice.partitions.why))
    if advice.size is not None:
        said.append((f"Size of the state: {format_bytes(advice.size.estimate_bytes)}", advice.size.why))
    said += [("Not known yet", f"{each[0].upper()}{each[1:]}.") for each in advice.missing]
    body = "".join(f"<div><b>{escaped(head)}</b><p>{escaped(why)}</p></div>" for head, why in said)
    return section("Advice", "Computed from the medians of the measures.", f'<div class="advice">{body}</div>')


def _keys(facts: Facts) -> int:
    return sum(size.rows for step, size in facts.steps.items() if not step.startswith(RESERVED))


def _keys_text(facts: Facts) -> str:
    """Return the number of keys in the state as text; without keys of steps, the rows of Spark's own operators."""
    keys = _keys(facts)
    if keys or not facts.operator_count:
        return f"{format_count(keys)} key{'s' * (keys != 1)}"
    operators = counted(facts.operator_count, "operator")
    if facts.operator_rows is None:
        return f"of {operators} of Spark; rows not counted yet"
    return f"{format_count(facts.operator_rows)} row{'s' * (facts.operator_rows != 1)} of {operators} of Spark"
