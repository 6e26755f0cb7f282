"""The page: one self-contained HTML file, from the facts about a directory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from importlib.resources import files

from recovery.base.ids import Epoch
from recovery.base.intervals import format_interval
from recovery.base.wording import counted, moment_text, short_moment_text
from recovery.errors import with_path
from recovery.planning.advice import Advice
from recovery.planning.explain import Role, explain
from recovery.planning.going_back import after_text
from recovery.planning.health import Finding, Level, format_bytes, format_seconds, worst
from recovery.planning.lanes import Lane, lanes
from recovery.planning.measures import Measure
from recovery.planning.values import ClosedEpoch
from recovery.report.charts import Bar, Limit, Link, Point, lane_chart, line_chart, meter, share_bar
from recovery.report.facts import Facts
from recovery.report.text import escaped, format_count, shortened

RESERVED = "$"
SHOWN_PARTITIONS = 64
SHOWN_ROWS = 500
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
MARK = (
    '<svg viewBox="0 0 20 20" aria-hidden="true"><rect x="1" y="2" width="18" height="4" rx="2" fill="var(--accent)"/>'
    '<rect x="1" y="8" width="12" height="4" rx="2" fill="var(--accent)" opacity=".65"/>'
    '<rect x="1" y="14" width="7" height="4" rx="2" fill="var(--accent)" opacity=".35"/></svg>'
)
HATCH = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs><pattern id="hatch" width="6" '
    'height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" '
    'fill="var(--card)"/><rect width="2.5" height="6" fill="var(--gone)"/></pattern></defs></svg>'
)

Cell = str | int | None
Picture = tuple[str, str | None, Callable[[Measure], float | None], Callable[[float], str]]
"""A chart: its title, its target, its value, and how the value is shown."""


def page(facts: Facts, advice: Advice, largest: Sequence[tuple[str, str, int]]) -> str:
    """Return the whole page as text. Everything that comes from the directory is escaped."""
    flow = next((d.flow_id for d in facts.described if d.flow_id), None)
    title = flow or facts.directory.name or str(facts.directory)
    executions = {run.number: run for d in facts.described for run in d.executions}
    newest = _newest(facts)
    drawn = lanes(list(executions.values()), _closed(facts), newest)
    parts = [
        _alarm(facts),
        _tiles(facts, drawn),
        _timeline(facts, drawn),
        _frontiers(facts),
        _trends(facts),
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
        f"{_header(facts, title)}\n<main>\n{_joined(parts)}\n</main>\n"
        f"<footer>Made {escaped(moment_text(facts.now_ms))} by recovery {escaped(version('recovery'))} from "
        f"<code>{escaped(facts.directory)}</code>. Times are local to the machine that made it, "
        "with their offset from UTC.</footer>\n"
        f'<div id="tip" role="status"></div>\n<script>\n{script}</script>\n</body>\n</html>\n'
    )


def _newest(facts: Facts) -> ClosedEpoch | None:
    if facts.plan is not None:
        return facts.plan.snapshot
    return max((d.newest for d in facts.described if d.newest), key=lambda e: e.clock_ms, default=None)


def _closed(facts: Facts) -> set[tuple[int, int]]:
    """Return every known epoch, with the number of its execution."""
    held = {(e.execution.number, e.epoch) for d in facts.described for e in d.epochs}
    return held | {(measure.execution, measure.epoch) for measure in facts.epochs}


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
        holder = facts.holder
        running = f" · in use by process {escaped(holder['pid'])} on {escaped(holder['host'])}"
    partitions = counted(count, "partition")
    origin = f'<p class="sub">{escaped(facts.origins[0].text(moment_text))}</p>' if facts.origins else ""
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
        age = f"{after_text(snapshot.epoch)}, closed {_ago(facts.now_ms - snapshot.closed_ms)}"
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
            _ago(facts.now_ms - backup.finished_ms) if backup else "none",
            f"of epoch {backup.epoch:,}" if backup else "recorded here",
        ),
    ]
    cards = "".join(
        f'<div class="tile"><span>{escaped(name)}</span><b>{escaped(value)}</b><span>{escaped(note)}</span></div>'
        for name, value, note in tiles
    )
    return f'<div class="tiles">{cards}</div>'


def _timeline(facts: Facts, drawn: Sequence[Lane]) -> str:
    lead = (
        "Each row is an execution with the epochs that it closed, the newest first. A run that goes back abandons the "
        "later epochs; no file holds them any more, only this history."
    )
    if not drawn:
        return _section("Timeline", lead, '<p class="note">No run has begun yet.</p>')
    total = max(1, max(lane.last for lane in drawn))

    def at(epoch: int) -> float:
        """Return where an epoch begins; epoch 1 at the left edge."""
        return min(1.0, max(0.0, (epoch - 1) / total))

    rows, links, names = [], [], []
    newest_first = list(reversed(drawn))
    place: dict[int, int] = {lane.execution.number: index for index, lane in enumerate(newest_first)}
    for index, lane in enumerate(newest_first):
        rows.append(_lane_bars(lane, at))
        # The link of a rewind to the beginning comes from the execution that it abandons.
        origin = newest_first[index + 1].execution.number if lane.rewound and lane.parent is None else lane.parent
        if origin is not None:
            kind = "rewind" if lane.rewound else "onward"
            links.append(Link(at(lane.first), place[origin], index, kind))
        when = escaped(short_moment_text(lane.execution.started_ms))
        names.append(f'<span class="when">{when}</span><b>#{lane.execution.number}</b>')
    window = facts.plan.window if facts.plan else ()
    band = (at(window[0]), at(window[-1] + 1)) if window else None
    chart = lane_chart("Executions and their epochs", rows, links, band)
    legend = _legend(
        ('<rect class="lived" y="1" width="18" height="10" rx="3"/>', "epochs that count"),
        ('<rect class="gone" y="1" width="18" height="10" rx="3"/>', "abandoned by a rewind"),
        ('<line class="link rewind" x1="9" x2="9" y1="0" y2="12"/>', "went back to here"),
        ('<circle class="idle" cx="9" cy="6" r="4"/>', "closed no epoch"),
        ('<rect class="band" width="18" height="12" rx="3"/>', "can be resumed from"),
    )
    return _section(
        "Timeline",
        lead,
        _lane_box(names, chart, 20, "epoch 1", f"epoch {total:,}", scroll=len(drawn) > 28),
        legend,
        _executions_table(drawn),
    )


def _lane_bars(lane: Lane, at: Callable[[int], float]) -> list[Bar]:
    run = lane.execution
    said = f"execution {run.number} · {moment_text(run.started_ms)}"
    if lane.rewound:
        said += f"\nwent back over {counted(lane.rewound, 'epoch')} to {after_text(lane.first - 1)}"
    if lane.last < lane.first:
        return [Bar(at(lane.first), at(lane.first), "idle", f"{said}\nbegan {after_text(lane.first - 1)}, closed none")]
    bars = []
    if lane.lived >= lane.first:
        label = f"{said}\n{_epochs(lane.first, lane.lived)} count"
        bars.append(Bar(at(lane.first), at(lane.lived + 1), "lived", label))
    if lane.abandoned:
        start = max(lane.lived + 1, lane.first)
        label = f"{said}\n{_epochs(start, lane.last)} abandoned"
        bars.append(Bar(at(start), at(lane.last + 1), "gone", label))
    return bars


def _executions_table(drawn: Sequence[Lane]) -> str:
    rows: list[list[Cell]] = [
        [
            lane.execution.number,
            moment_text(lane.execution.started_ms),
            lane.first - 1,
            f"{lane.first:,} – {lane.last:,}" if lane.last >= lane.first else "none",
            lane.abandoned,
            format_interval(lane.execution.snapshot_interval_s),
            format_interval(lane.execution.backup_interval_s),
            lane.execution.host,
        ]
        for lane in reversed(drawn)
    ]
    header = ("execution", "started", "after epoch", "closed", "abandoned", "-s", "-b", "host")
    return _details("Executions as a table", _table(header, rows))


def _frontiers(facts: Facts) -> str:
    lead = (
        "A run resumes from the newest epoch that every partition holds. A bar shows the epochs that one file can go "
        "back to; the shaded part shows those that all share."
    )
    verdicts = explain(list(facts.found), lambda ms: moment_text(ms) if ms is not None else "-")
    held = [each for each in verdicts if each.oldest is not None]
    if not verdicts:
        return ""
    low = min((each.oldest or 0 for each in held), default=0)
    high = max((each.newest_epoch or 0 for each in held), default=0)
    width = max(1, high - low + 1)

    def at(epoch: int) -> float:
        return (epoch - low) / width

    # Files that are not current come first.
    order = sorted(verdicts, key=lambda each: each.role is Role.CURRENT)[:SHOWN_PARTITIONS]
    shown = [each for each in verdicts if each in order]
    rows, names = [], []
    for each in shown:
        names.append(f"<b>{escaped(shortened(each.path.name, 28))}</b>")
        if each.oldest is None:
            rows.append([Bar(0, 0, "idle", f"{each.path.name}: {each.note}")])
            continue
        newest = each.newest_epoch or 0
        style = "held" if each.role in (Role.CURRENT, Role.HOLDS_BACK, Role.AHEAD) else "beyond"
        label = f"{each.path.name}\nepochs {each.oldest:,} to {newest:,}\n{each.note}"
        rows.append([Bar(at(each.oldest), at(newest + 1), style, label)])
    window = facts.plan.window if facts.plan else ()
    band = (at(window[0]), at(window[-1] + 1)) if window else None
    chart = lane_chart("The epochs that each partition holds", rows, band=band)
    sizes = {d.path: d.size_bytes for d in facts.described}
    table: list[list[Cell]] = [
        [
            each.path.name,
            each.oldest,
            each.newest_epoch,
            moment_text(each.newest.closed_ms) if each.newest else None,
            format_bytes(sizes[each.path]) if each.path in sizes else None,
            each.note,
        ]
        for each in verdicts
    ]
    more = ""
    if len(verdicts) > len(shown):
        more = f'<p class="note">{len(verdicts) - len(shown):,} more are in the table.</p>'
    return _section(
        "Partitions",
        lead,
        _lane_box(names, chart, 20, _before(low), f"epoch {high:,}", scroll=len(shown) > 28),
        more,
        _details("Partitions as a table", _table(("file", "oldest", "newest", "closed", "size", "verdict"), table)),
    )


def _trends(facts: Facts) -> str:
    lead = "Measures of each closed epoch, in the order of closing; dotted lines mark new executions."
    epochs = facts.epochs
    if not epochs:
        note = "Nothing is measured yet: runs record measures with every epoch that they close."
        return _section("State and snapshots over time", lead, f'<p class="note">{note}</p>')
    targets = {finding.target.name: finding.target for finding in facts.health}
    breaks = [
        index / len(epochs) for index in range(1, len(epochs)) if epochs[index].execution != epochs[index - 1].execution
    ]
    if len(breaks) > 60:
        breaks = []
    pictures: list[Picture] = [
        ("State size", "state-size", lambda m: m.state_bytes, format_bytes),
        ("Snapshot duration", "snapshot-duration", lambda m: m.snapshot_s, format_seconds),
        ("Written by a snapshot", None, lambda m: m.written_bytes, format_bytes),
        ("Micro-batch time", None, lambda m: m.batch_s / m.batches if m.batches else None, format_seconds),
        ("State update latency, per key", "update-latency", lambda m: m.latency_s, format_seconds),
        ("Memory of the run's processes", "memory", lambda m: m.memory_bytes, format_bytes),
    ]
    since, until = (escaped(short_moment_text(m.measured_ms)) for m in (epochs[0], epochs[-1]))
    charts = []
    for name, target_name, value, shown in pictures:
        points = [
            Point(v, f"epoch {m.epoch:,}, execution {m.execution}\n{moment_text(m.measured_ms)}\n{shown(v)}")
            for m in epochs
            if (v := value(m)) is not None
        ]
        if not points:
            continue
        target = targets.get(target_name or "")
        limits = [
            Limit(level, kind, f"{kind} {target.shown(level)}")
            for kind, level in (("warning", target.warning), ("critical", target.critical))
            if level is not None
        ] if target else []  # fmt: skip
        span = f"<span>{since}</span><span>{until}</span>"
        charts.append(
            f'<div><span class="now">{escaped(shown(points[-1].value))}</span><h3>{escaped(name)}</h3>'
            f'{line_chart(name, points, shown, limits, breaks)}<div class="span">{span}</div></div>'
        )
    rows: list[list[Cell]] = [
        [
            m.epoch, m.execution, moment_text(m.measured_ms), m.batches, m.input_rows, m.touched,
            format_seconds(m.batch_s), format_seconds(m.snapshot_s), format_bytes(m.written_bytes),
            format_bytes(m.state_bytes), format_seconds(m.collect_s),
        ]
        for m in reversed(epochs[-SHOWN_ROWS:])
    ]  # fmt: skip
    header = (
        "epoch", "execution", "closed", "micro-batches", "rows", "touched", "their time", "snapshot", "written",
        "state", "collected in",
    )  # fmt: skip
    return _section(
        "State and snapshots over time",
        lead,
        f'<div class="charts">{"".join(charts)}</div>',
        _details(f"The newest {counted(len(rows), 'epoch')} as a table", _table(header, rows)),
    )


def _health(found: Sequence[Finding]) -> str:
    lead = "The highest value in the newest ten epochs of the last execution, against the configured levels."
    cards = []
    for each in found:
        t = each.target
        if t.warning is None or t.critical is None:
            limits, picture = "no levels set", ""
        else:
            limits = f"warning from {t.shown(t.warning)}, critical from {t.shown(t.critical)}"
            picture = (
                meter(each.value, t.warning, t.critical, str(each.level), str(each)) if each.value is not None else ""
            )
        level = "not watched" if t.warning is None else str(each.level) if each.note is None else each.note
        title = f"{t.title[0].upper()}{t.title[1:]}"
        cards.append(
            f'<div class="target"><div class="row"><h3>{escaped(title)}</h3><span class="pill {each.level}">'
            f"{escaped(level)}</span></div><b>{escaped(t.shown(each.value))}</b>{picture}"
            f'<p class="limits">{escaped(limits)}</p></div>'
        )
    return _section("Health", lead, f'<div class="targets">{"".join(cards)}</div>')


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
    return _section("Biggest steps", lead, f'<div class="table"><table>{header}{rows}</table></div>')


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
    return _section("Biggest keys", lead, f'<div class="table"><table>{header}{rows}</table></div>')


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
    return _section("Advice", "Computed from the medians of the measures.", f'<div class="advice">{body}</div>')


def _section(title: str, lead: str, *parts: str) -> str:
    return f'<section><h2>{escaped(title)}</h2><p class="lead">{escaped(lead)}</p>{"".join(parts)}</section>'


def _lane_box(names: Iterable[str], chart: str, lane: int, left: str, right: str, *, scroll: bool) -> str:
    labels = "".join(f'<div style="height:{lane}px">{name}</div>' for name in names)
    box = f'<div class="lane-box"><div class="names">{labels}</div><div class="picture">{chart}</div></div>'
    if scroll:
        box = f'<div class="scroll" tabindex="0">{box}</div>'
    return f'{box}<div class="span"><span>{escaped(left)}</span><span>{escaped(right)}</span></div>'


def _legend(*entries: tuple[str, str]) -> str:
    items = "".join(f"<li><svg aria-hidden=true>{shape}</svg>{escaped(text)}</li>" for shape, text in entries)
    return f'<ul class="legend">{items}</ul>'


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{escaped(summary)}</summary>{content}</details>"


def _table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    numeric = [all(isinstance(row[i], int) or row[i] is None for row in rows) for i in range(len(header))]

    def cell(tag: str, index: int, value: Cell) -> str:
        shown = "–" if value is None else f"{value:,}" if isinstance(value, int) else value
        kind = ' class="n"' if numeric[index] else ""
        return f"<{tag}{kind}>{escaped(shown)}</{tag}>"

    head = "".join(cell("th", index, name) for index, name in enumerate(header))
    body = "".join(f"<tr>{''.join(cell('td', i, value) for i, value in enumerate(row))}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part)


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


def _epochs(first: Epoch | int, last: Epoch | int) -> str:
    return f"epoch {first:,}" if first == last else f"epochs {first:,} to {last:,}"


def _before(epoch: int) -> str:
    return f"epoch {epoch:,}" if epoch else "the beginning"


def _ago(milliseconds: int) -> str:
    return f"{format_interval(max(0, round(milliseconds / 1000)))} ago"
