"""Sources of a restored checkpoint that have another place in the flow than before."""

from __future__ import annotations

import json
import os
import random

import pytest

from recovery.checkpoint.capture import Capture
from recovery.checkpoint.home import LocalHome
from recovery.checkpoint.position import missing_entry, position_files
from recovery.checkpoint.restore import restore
from recovery.checkpoint.rows import CHUNK_BYTES
from recovery.checkpoint.source_places import places_of, recorded_places
from recovery.checkpoint.sources import check_logs, fit_sources
from recovery.errors import CorruptPartitionError, FlowMismatchError, SparkCheckpointError
from tests.checkpoint.layouts import with_steps

TICK = '{"tick_ms": 17}'


def rows_of(layout, logs, batch=9):
    """What the partitions hold of a checkpoint: of each source its offset, and what it has logged."""
    lines = ["v1", "{}", *(TICK if name.startswith("tick") else json.dumps({"of": name}) for name in layout)]
    rows = {"metadata": "{}", f"offsets/{batch}": "\n".join(lines), f"commits/{batch}": "v1"}
    for name, files in logs.items():
        for number, content in files.items():
            rows[f"sources/{list(dict.fromkeys(layout)).index(name)}/{number}"] = content
    return rows


def saved(rows, layout, directory, batch, write=lambda _: None):
    """The rows after a run with the sources of `layout`, that begins on these rows and closes an epoch."""
    checkpoint = directory / "checkpoint"
    places = places_of(layout, [name.startswith("tick") for name in layout])
    restored = fit_sources(restore(rows.items(), checkpoint), checkpoint, places)
    capture = Capture(LocalHome(checkpoint), restored.held, restored.stale, sources=places.ids)
    (checkpoint / f"offsets/{batch}").write_text((checkpoint / f"offsets/{restored.batch}").read_text())
    (checkpoint / f"commits/{batch}").write_text("v1")
    write(checkpoint)
    return after_saving(rows, capture.take(batch))


def after_saving(rows, captured):
    """The rows after an epoch with these changes."""
    return {key: content for key, content in {**rows, **captured}.items() if content is not None}


def test_offsets_follow_their_sources(tmp_path):
    """Lines of ticks come and go; the others stay what they were, in their order."""
    rows = rows_of(["a", "tick", "b"], {})
    for number, layout in enumerate((["a", "b"], ["tick", "a", "b", "tick"], ["a", "tick", "b"])):
        found = saved(rows, layout, tmp_path / str(number), 10)["offsets/10"].split("\n")[2:]
        assert ["tick" if "tick_ms" in line else line["of"] for line in map(json.loads, found)] == layout
    with pytest.raises(FlowMismatchError, match=r"reads 3 sources, and the saved position has 2"):
        saved(rows, ["a", "b", "c"], tmp_path / "more", 10)


def named(layout):
    """The places of sources with names: those that begin with one letter have one path; what follows a colon are
    options, and "!" another kind of source. Others are read separately."""
    names = [f"{'rows' if '!' in name else 'text'} {name[0]} {name[0]}{name.partition(':')[2]}" for name in layout]
    return places_of(layout, [name.startswith("tick") for name in layout], names)


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (["a", "b"], ["b", "a"], ["b", "a"]),
        (["a", "tick", "b"], ["b", "b", "a"], ["b", "b", "a"]),
        (["a", "b"], ["c", "b", "tick", "a"], [None, "b", "tick", "a"]),
        (["a", "b"], ["b", "c"], ["b", "a"]),
        (["a1", "a2"], ["b", "a1", "a2"], [None, "a1", "a2"]),
        (["a"], ["a", "a", "a"], ["a", "a", "a"]),
        (["a", "a", "b"], ["b", "a"], ["b", "a"]),
        (["a", "b"], ["b"], None),
        (["a", "b"], ["c", "d", "b"], None),
        (["a"], ["a1", "a2"], ["a", "a"]),
        (["b", "a"], ["a1", "b", "a2"], ["a", "b", "a"]),
        (["a1", "a2"], ["a3"], None),
        (["a1", "a2"], ["a3", "a4", "a5"], None),
        (["a:x"], ["a:y", "a:x"], [None, "a:x"]),
        (["a:x", "a:y"], ["a:y", "a:x"], ["a:y", "a:x"]),
        (["a:x", "b"], ["b", "a:y"], ["b", "a:x"]),
        (["a:x"], ["a:y", "a:z"], None),
        (["a", "b"], ["a", "c!"], None),
        (["a", "b!"], ["c!", "a"], ["b!", "a"]),
        (["a1", "b!"], ["c!", "d"], ["b!", "a1"]),
    ],
)
def test_sources_that_are_known(tmp_path, before, after, lines):
    """Each keeps its offset and its log wherever it is; a new one begins, or has the place of the one it replaces."""
    names = [name for name in dict.fromkeys(before) if not name.startswith("tick")]
    rows = rows_of(before, {name: {0: name} for name in names})
    home = tmp_path / "checkpoint"
    restored = restore(rows.items(), home)
    places = recorded_places(named(before).to_text())
    assert places.others() == named(before).others()
    if lines is None:
        with pytest.raises(FlowMismatchError):
            fit_sources(restored, home, named(after), places)
        return
    fit_sources(restored, home, named(after), places)
    found = (home / "offsets/9").read_text().split("\n")[2:]
    expected = [None if line == "-" else json.loads(line).get("of", "tick") for line in found]
    assert expected == lines
    for place, name in enumerate(dict.fromkeys(after)):
        log = home / f"sources/{place}/0"
        assert (log.read_text() if log.exists() else None) == (
            None if name.startswith("tick") else lines[after.index(name)]
        )


def test_separate_reads_that_have_come_equally_far(tmp_path):
    """They may become fewer, or more: which of them is which does not matter."""
    rows = rows_of(["a1", "a2", "b"], {name: {0: name[0], 1: "more"} for name in ("a1", "a2", "b")})
    rows["offsets/9"] = rows["offsets/9"].replace("a1", "a").replace("a2", "a")
    for number, after in enumerate((["b", "a3"], ["a3", "a4", "b", "a5"], ["b", "a3", "c"])):
        home = tmp_path / str(number)
        fit_sources(restore(rows.items(), home), home, named(after), named(["a1", "a2", "b"]))
        found = (home / "offsets/9").read_text().split("\n")[2:]
        came = [name[0].replace("c", "a") for name in after]
        assert [json.loads(line)["of"] for line in found] == came
        for place, name in enumerate(came):
            assert (home / f"sources/{place}/0").read_text() == name
        assert {path.name for path in (home / "sources").iterdir()} == {str(place) for place in range(len(after))}


@pytest.mark.parametrize("apart", [False, True])
def test_whatever_changes_each_source_continues_from_one_that_may_be_it(tmp_path, apart):
    """Random flows, one after the other. A source that was read before goes on, and has the log that belongs to its
    offset; nothing else lies where Spark would find it, and what is held is what the partitions have. apart: separate
    reads of the same have come to different positions."""
    generator = random.Random(int(os.environ.get("RECOVERY_TEST_SEED", "1")))
    reads = ["text a ax", "text a ay", "text b b", "rows c c", "tick"]

    def flow():
        chosen = [(generator.choice(reads), generator.randrange(2)) for _ in range(generator.randrange(1, 6))]
        steps = {each: generator.choice(["", " one", " two"]) for each in chosen}
        names = [name + steps[name, number] for name, number in chosen]
        return places_of(chosen, [name == "tick" for name, _ in chosen], names)

    def read(name):
        return " ".join(name.split(" ")[:3])

    refused = 0
    for number in range(200):
        before, after = flow(), flow()
        rows = {"metadata": "{}", "commits/9": "v1"}
        lines, logs = [], {}
        for source, name, tick in zip(before.ids, before.names, before.ticks, strict=True):
            lines.append(TICK if tick else json.dumps({"of": read(name), "source": source if apart else None}))
            if not tick and read(name) != "text b b":
                logs[lines[-1]] = {f"sources/{source}/{n}": f"{lines[-1]} {n}" for n in range(2)}
                rows |= logs[lines[-1]]
        rows["offsets/9"] = "\n".join(["v1", "{}", *lines])
        home = tmp_path / str(number)
        try:
            fitted = fit_sources(restore(rows.items(), home), home, after, before)
        except FlowMismatchError:
            refused += 1
            continue
        found = (home / "offsets/9").read_text().split("\n")[2:]
        expected = {}
        for source, name, tick, line in zip(after.ids, after.names, after.ticks, found, strict=True):
            if tick:
                assert "tick_ms" in line
                continue
            assert line == "-" or line in lines
            were, are = (
                len({i for i, each in zip(flow.ids, flow.names, strict=True) if read(each) == read(name)})
                for flow in (before, after)
            )
            if 0 < were <= are:
                assert json.loads(line)["of"] == read(name), f"{before} {after}"
                if apart and before.names.count(name) == after.names.count(name) == 1:
                    assert line == lines[before.names.index(name)], "for the same step"
            expected |= {f"sources/{source}/{n}": f"{line} {n}" for n in range(2) if line in logs}
        for line, name in zip(lines, before.names, strict=True):
            if apart and line != TICK and line not in found:
                assert name.split(" ")[3:] not in [each.split(" ")[3:] for each in after.names], f"{before} {after}"
                assert any(json.loads(each)["of"] == read(name) for each in found if each.startswith('{"of'))
        present = {p.relative_to(home).as_posix(): p.read_text() for p in (home / "sources").rglob("*") if p.is_file()}
        assert present == expected, f"{before} {after}"
        held = {path for path in fitted.held if path.startswith("sources/")}
        assert {path: rows[path] for path in held} == {path: present[path] for path in held}
        assert {path for path in rows if path.startswith("sources/")} - held <= fitted.stale
        # Saved as it is, before any micro-batch, it is the same again.
        again = after_saving(rows, Capture(LocalHome(home), fitted.held, fitted.stale, sources=after.numbers).take(9))
        assert again["offsets/9"].split("\n")[2:] == found
        assert {path: text for path, text in again.items() if path.startswith("sources/")} == present
    assert 20 < refused < 180


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["a:x", "a:x "], ["a:x", "a:y", "a:z"]),
        (["a:x", "a:x "], ["a:x", "b", "c"]),
        (["a:x", "a:x ", "a:x  "], ["a:x", "b"]),
        (["a:x", "a:x ", "b"], ["a:x", "c"]),
    ],
)
def test_reads_that_were_left_out_or_changed(tmp_path, before, after):
    """Where something new can be one of them it is not taken for left out: what is new would begin again."""
    lines = ["v1", "{}", *(json.dumps({"of": name.strip()}) for name in before)]
    rows = {"metadata": "{}", "offsets/9": "\n".join(lines), "commits/9": "v1"}

    def places(layout):
        names = [f"text {name[0]} {name.strip()}" for name in layout]
        return places_of(layout, [False] * len(layout), names)

    with pytest.raises(FlowMismatchError):
        fit_sources(restore(rows.items(), tmp_path / "0"), tmp_path / "0", places(after), places(before))


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        (["two", "one"], [2, 1]),
        (["three", "two", "one"], [1, 2, 1]),
        (["two", "three"], [2, 1]),
        (["uno", "one"], [2, 1]),
        (["one"], [1]),
        (["one", "three", "four"], None),
        (["three"], None),
    ],
)
def test_separate_reads_are_distinguished_by_the_step_that_they_are_for(tmp_path, after, lines):
    """Input that comes in between has them at other positions."""
    rows = {"metadata": "{}", "offsets/9": 'v1\n{}\n{"n":1}\n{"n":2}', "commits/9": "v1"}

    def places(steps):
        return places_of(steps, [False] * len(steps), [f"topic a a {step}" for step in steps])

    before = places(["one", "dos"]).renamed({"dos": "two"})
    home = tmp_path / "checkpoint"
    restored = restore(rows.items(), home)
    if lines is None:
        with pytest.raises(FlowMismatchError):
            fit_sources(restored, home, places(after), before)
        return
    fit_sources(restored, home, places(after), before)
    found = [json.loads(line)["n"] for line in (home / "offsets/9").read_text().split("\n")[2:]]
    assert found == lines


def fitted(layout, positions, after, home):
    """The position of each source of `after`, None for one that begins, when those of `layout` have come so far."""
    before = with_steps(layout)
    lines = ["-" if positions[source] is None else json.dumps({"n": positions[source]}) for source in before.ids]
    rows = {"metadata": "{}", "offsets/9": "\n".join(["v1", "{}", *lines]), "commits/9": "v1"}
    fit_sources(restore(rows.items(), home), home, with_steps(after), recorded_places(before.to_text()))
    found = (home / "offsets/9").read_text().split("\n")[2:]
    each = dict(zip(with_steps(after).ids, found, strict=True))
    return [None if line == "-" else json.loads(line)["n"] for line in each.values()]


@pytest.mark.parametrize(
    ("before", "positions", "after", "expected"),
    [
        # A branch of what several read, or a step beside a new one, has other options or another path.
        (["x one two"], [5], ["x:o one", "x two"], "step 'one' would read"),
        (["x one two"], [5], ["x two", "y one"], "step 'one' would read"),
        (["x one"], [5], ["y one", "x two"], "step 'one' would read"),
        (["x one", "x two"], [5, 5], ["y one", "x two", "x three"], "step 'one' would read"),
        (["x  "], [5], ["x", "y"], "output without a step would read"),
        # It is read for both, or for steps that had not read it.
        (["x one two"], [5], ["x one two", "y one"], [5, None]),
        (["x one two"], [5], ["x one", "y three"], [5, None]),
        (["x one two"], [5], ["x one", "x two"], [5, 5]),
        (["x one", "x two"], [5, 5], ["x:o one", "x two"], [5, 5]),
        (["x one", "x two"], [5, 5], ["y one", "x two"], [5, 5]),
        (["x", "x"], [5, 5], ["x", "x", "y"], [5, 5, None]),
        # Reads apart come together in other ways: each step goes on from where it was.
        (["x one", "x two"], [5, 7], ["x two four", "x one three"], [7, 5]),
        (["x one", "x two"], [5, 7], ["x one two", "x three"], "step 'one' and step 'two' would continue"),
        (["x one two", "x three"], [5, 7], ["x one", "x two"], [5, 5]),
        (["x one two", "x three"], [5, 7], ["x one", "x two three"], "would continue from the position"),
        (["x one two", "x three"], [5, 7], ["x one", "x two", "x three"], [5, 5, 7]),
        (["x one", "x two"], [5, 7], ["x one", "x two", "x two"], [5, 7, 7]),
        (["x three", "x four one"], [5, 7], ["x four"], [7]),
        (["x one", "x two", "x three"], [5, 5, 7], ["x one two", "x three"], [5, 7]),
        (["x one", "x one"], [5, 5], ["x one", "x:o one"], [5, 5]),
        (["x one", "x two"], [5, 5], ["x one two", "x:o three"], [5, None]),
        (["x one", "x two"], [5, 5], ["x one two", "y three"], [5, None]),
        # The same path by options that another step read already.
        (["x one two", "x:o three"], [5, 9], ["x one", "x:o two", "x:o three"], "step 'two' would continue"),
        (["x one", "x:o two"], [5, 9], ["x two", "x:o one"], "step 'one' would continue"),
        (["x one", "x:o two"], [5, 9], ["x three", "x:o one", "x:o two"], "step 'one' would continue"),
        (["x one", "x:o two"], [5, 5], ["x two", "x:o one"], [5, 5]),
        # One of several places in which it is read.
        (["x one one"], [5], ["x one", "x:o one"], "step 'one' would read"),
        (["x one "], [5], ["x:o", "x one two"], "output without a step would read"),
        # By another format, from the same path.
        (["x one two"], [5], ["x! one", "x two"], "step 'one' would read"),
        (["x one"], [5], ["x! one", "x two"], "step 'one' would read"),
        # A step before another one, and one that is not there any more.
        (["x one", "x two"], [5, 7], ["x +pre2+two", "x +pre1+one"], [7, 5]),
        (["x +pre+one", "x two"], [5, 7], ["x one two"], "would continue from the position"),
        (["x one two"], [5], ["x:o +pre+one", "x two"], "step 'one' would read"),
        (["x +pre1+one", "x +pre2+one"], [5, 7], ["x +pre2+one", "x one"], [7, 5]),
        # What has no position yet may be left out again, and does not become another one.
        (["x one", "y one"], [5, None], ["x one"], [5]),
        (["x one", "x:o one"], [5, None], ["x one two"], [5]),
        (["x one", "y one"], [5, None], ["z one", "x one"], [None, 5]),
        (["x one", "x two"], [5, None], ["x two", "x one"], [None, 5]),
        (["x one", "x two"], [5, None], ["x one two"], "would continue from the position"),
        (["x one", "x two"], [5, None], ["x one"], [5]),
        # Other paths, in another order; and a source that is left out beside one that is new.
        (["x one", "y two"], [5, 7], ["z two", "w one"], [7, 5]),
        (["x one", "y two"], [5, 7], ["x one two", "z three"], "1 are not found|1 is not found"),
        (["x one", "y two"], [5, 7], ["x one", "z three"], [5, 7]),
        # A source that is left out is not what another step would continue with.
        (["x one two", "y one two"], [5, 7], ["x one", "x:o two"], "step 'two' would continue"),
        (["x one", "y one"], [5, 7], ["x two", "x:o one"], "step 'one' would continue"),
        (["x one two", "y three"], [5, 7], ["x two", "z one"], "step 'one' would continue"),
        # Output without a step is protected, too.
        (["x", "x one two"], [5, 7], ["x one", "y two"], "would continue"),
        (["x", "x:o one"], [5, 7], ["x:o", "y one"], "output without a step would continue"),
        (["x one", "x"], [5, None], ["x one "], "would continue"),
        (["x one", "x"], [5, 7], ["x one ", "x:o"], "would continue"),
        (["x", "x one"], [5, 7], ["x two", "x:o"], "output without a step would continue"),
        # How often each step reads it.
        (["x one one"], [5], ["x one three", "x:o one"], "step 'one' would read"),
        (["x one one"], [5], ["x one three", "y one"], "step 'one' would read"),
        (["x  "], [5], ["x one ", "x:o"], "output without a step would read"),
        (["x one two"], [5], ["x one", "y one"], [5, None]),
        (["x one", "x two"], [5, 5], ["x one two", "y two"], [5, None]),
        (["x one", "x one one"], [5, 5], ["x one one", "x one", "z one"], [5, 5, None]),
        # What was read for a step that is gone does not become what is new.
        (["x one", "x two"], [5, 5], ["x one", "y three"], [5, None]),
    ],
)
def test_steps_that_share_a_read(tmp_path, before, positions, after, expected):
    """No step goes back, nor passes over input, because what it reads is read by others, too."""
    if isinstance(expected, str):
        with pytest.raises(FlowMismatchError, match=expected):
            fitted(before, positions, after, tmp_path / "checkpoint")
    else:
        assert fitted(before, positions, after, tmp_path / "checkpoint") == expected


def test_whatever_changes_each_step_continues_where_it_was(tmp_path):
    """Random flows whose steps share reads, or not. Of all that a step has read it goes on from its own position, and
    what it begins is nothing that it may have read in another way."""
    generator = random.Random(int(os.environ.get("RECOVERY_TEST_SEED", "1")))
    reads = ["x", "x:o", "y"]

    def flow():
        sources = []
        for what in generator.sample(reads, generator.randrange(1, 4)):
            steps = generator.sample(["one", "two", "three", "four"], generator.randrange(1, 4))
            while steps:
                count = generator.randrange(1, len(steps) + 1)
                sources.append((what, steps[:count]))
                steps = steps[count:]
        generator.shuffle(sources)
        return sources

    def layout(sources):
        return [" ".join([what, *steps]) for what, steps in sources]

    accepted = 0
    for number in range(300):
        before, after = flow(), flow()
        positions = [10 * reads.index(what) + generator.randrange(3) for what, _ in before]
        try:
            found = fitted(layout(before), positions, layout(after), tmp_path / str(number))
        except FlowMismatchError:
            continue
        accepted += 1
        truth = {(what, step): n for (what, steps), n in zip(before, positions, strict=True) for step in steps}
        begun, goes_on = set(), set()
        for (what, steps), position in zip(after, found, strict=True):
            assert position is not None or what not in dict(before), f"{before} {after}"
            for step in steps:
                assert truth.get((what, step), position) == position, f"{before} {positions} {after}"
                if position is None:
                    begun.add(step)
                else:
                    goes_on.add((reads[position // 10], step))
        assert not begun & {step for _, step in truth.keys() - goes_on}, f"{before} {positions} {after}"
    assert 30 < accepted < 270


def test_names_of_digits(tmp_path):
    """They are names, and no numbers of places."""
    rows = {"metadata": "{}", "commits/9": "v1", "offsets/9": 'v2\n{}\n0:{"of":"a"}\n1:{"of":"b"}'}
    rows |= {"sources/0/0": "a", "sources/1/0": "b"}

    def places(names):
        kinds = [f"text {name} {name}" for name in names.values()]
        return places_of(names.values(), [False] * len(names), kinds, names)

    before = recorded_places(places({"0": "a", "1": "b"}).to_text())
    home = tmp_path / "again"
    after = places({"1": "b", "0": "a"})
    fit_sources(restore(rows.items(), home), home, after, before)
    assert (home / "offsets/9").read_text() == rows["offsets/9"]
    assert [(home / f"sources/{n}/0").read_text() for n in (0, 1)] == ["a", "b"]
    assert after.numbers is None
    for number, names in enumerate(({"0": "a"}, {"y": "a", "z": "b"})):
        home = tmp_path / str(number)
        with pytest.raises(FlowMismatchError, match="named sources that the flow lacks"):
            fit_sources(restore(rows.items(), home), home, places(names), before)
    rows["offsets/9"] = rows["offsets/9"].replace("0:", "2024:").replace("1:", "2025:")
    home = tmp_path / "unnamed"
    with pytest.raises(FlowMismatchError, match="the flow lacks: 2024, 2025"):
        fit_sources(restore(rows.items(), home), home, with_steps(["a", "b"]), before)


def test_sources_by_their_number_in_the_second_form(tmp_path):
    """Spark numbers the lines there where the flow's code names nothing, in any order: one for each source, by the last
    place where it is read."""
    rows = {"metadata": "{}", "offsets/9": 'v2\n{}\n2:{"of":"b"}\n1:{"of":"a"}', "commits/9": "v1"}
    rows |= {"sources/0/0": "a", "sources/1/0": "b"}
    home = tmp_path / "checkpoint"
    after = named(["tick", "b", "a", "b", "a", "c"])
    fit_sources(restore(rows.items(), home), home, after, named(["a", "a", "b"]))
    found = (home / "offsets/9").read_text().split("\n")[2:]
    assert sorted(found) == ['0:{"tick_ms": 0}', '3:{"of":"b"}', '4:{"of":"a"}', "5:-"]
    assert [(home / f"sources/{n}/0").read_text() for n in (1, 2)] == ["b", "a"]
    rows["offsets/9"] = 'v2\n{}\n1:{"n":5}\n2:{"n":5}'
    again = tmp_path / "again"
    fit_sources(restore(rows.items(), again), again, named(["b", "a", "a"]), named(["a", "a", "b"]))
    found = (again / "offsets/9").read_text().split("\n")[2:]
    assert sorted(found) == ['0:{"n":5}', '2:{"n":5}'], "also where all have come equally far"


def test_a_source_with_a_name_that_is_left_out(tmp_path):
    rows = {"metadata": "{}", "offsets/9": 'v2\n{}\norders:{"n":1}\nclicks:{"n":2}', "commits/9": "v1"}
    for number, labels in enumerate((["clicks", "orders", "more"], ["orders"])):
        home = tmp_path / str(number)
        restored = restore(rows.items(), home)
        places = places_of(labels, [False] * len(labels), None, labels)
        if "clicks" in labels:
            assert fit_sources(restored, home, places) == restored
            continue
        with pytest.raises(FlowMismatchError, match="lacks: clicks"):
            fit_sources(restored, home, places)


def test_one_source_in_more_places_than_an_earlier_version_recorded(tmp_path):
    """There is no doubt which it is."""
    rows = rows_of(["a"], {"a": {0: "a"}})
    assert saved(rows, ["a", "tick", "a"], tmp_path, 10)["offsets/10"].count('{"of": "a"}') == 2


def test_invalid_places():
    with pytest.raises(CorruptPartitionError, match="do not say which source is where"):
        recorded_places('{"source": 1}')


def test_what_sources_keep_below_their_logs(tmp_path):
    """Some connectors keep their progress in directories, numbered by micro-batch."""
    kept = ["sources/0/shards/3/shard-1", "sources/0/shards/2/shard-1", "sources/0/meta/about"]
    later = ["sources/0/shards/4/shard-1", "sources/0/4", "sources/0/meta/.hidden", "sources/0/.tmp/x"]
    rows = {"metadata": "{}", "offsets/3": "v1\n{}\n{}", "commits/3": "v1", "sources/0/0": "0"}
    for path in [*rows, *kept, *later]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(rows.get(path, path))
    assert position_files(tmp_path, 3) == rows.keys() | set(kept)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["a", "a", "b", "c"], ["a", "a", "tick", "b", "c"]),
        (["a", "tick", "a", "b", "c"], ["a", "a", "b", "c"]),
        (["tick", "a", "b", "a", "c"], ["a", "b", "a", "c", "tick"]),
        (["a", "b", "a", "c"], ["tick", "a", "b", "a", "tick2", "c"]),
    ],
)
def test_a_source_in_two_places(tmp_path, before, after):
    """It has a line for each place and one log, and those that come after it have lower numbers than lines."""
    logs = {name: {n: f"{name}{n}" for n in range(3)} for name in "abc"}
    rows = rows_of(before, logs)
    ids = {name: place for place, name in enumerate(dict.fromkeys(after))}

    def write(checkpoint):
        for name in "abc":
            (checkpoint / f"sources/{ids[name]}/3").write_text(f"{name}3")

    kept = saved(rows, after, tmp_path, 10, write)
    for name in "abc":
        found = [kept[f"sources/{ids[name]}/{n}"] for n in range(4)]
        assert [str(each, "utf-8") if isinstance(each, bytes) else each for each in found] == [
            f"{name}{n}" for n in range(4)
        ]


def test_what_is_taken_of_a_log_is_distinguished_by_its_own_line(tmp_path):
    """Also where a source before it has two; and a log that ends too early is noticed."""
    lines = ["v1", "{}", '{"logOffset":0}', '{"logOffset":0}', '{"logOffset":2}']
    rows = {"metadata": "{}", "offsets/5": "\n".join(lines), "commits/5": "v1", "sources/0/0": "base"}
    rows |= {f"sources/1/{n}": f"other{n}" for n in range(3)}
    places = places_of(["base", "base", "other"], [False] * 3)
    check_logs(restore(rows.items(), tmp_path / "whole"), tmp_path / "whole", places)
    (tmp_path / "whole/sources/0/1").write_text("of the next micro-batch")
    (tmp_path / "whole/sources/1/3").write_text("of the next micro-batch")
    assert position_files(tmp_path / "whole", 5, places.ids) == rows.keys()
    assert missing_entry(tmp_path / "whole", 5) == "sources/2/2", "each line taken for a source of its own"
    del rows["sources/1/2"]
    with pytest.raises(SparkCheckpointError, match=r"sources/1/2 is missing"):
        check_logs(restore(rows.items(), tmp_path / "torn"), tmp_path / "torn", places)


@pytest.mark.parametrize("quiet", ["a", "b"])
@pytest.mark.parametrize("back", [False, True])
def test_a_source_that_has_logged_nothing_yet(tmp_path, quiet, back):
    """What another had under the name that it has now is not taken for its own."""
    layouts = [["tick", "a", "b"], ["a", "b"]]
    before, after = reversed(layouts) if back else layouts
    loud = "b" if quiet == "a" else "a"
    rows = rows_of(before, {loud: {n: f"{loud}{n}" for n in range(2)}})
    ids = {name: place for place, name in enumerate(after)}

    def write(checkpoint):
        for name, entry in ((loud, 2), (quiet, 0)):
            path = checkpoint / f"sources/{ids[name]}/{entry}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{name}{entry}")

    kept = saved(rows, after, tmp_path, 10, write)
    texts = {key: each.decode() if isinstance(each, bytes) else each for key, each in kept.items() if "sources/" in key}
    assert texts == {f"sources/{ids[loud]}/{n}": f"{loud}{n}" for n in range(3)} | {
        f"sources/{ids[quiet]}/0": f"{quiet}0"
    }


def test_sources_that_have_names(tmp_path):
    """In the second form of Spark's log of offsets a line begins with the name of its source, or with its place."""
    lines = ["v2", "{}", 'orders:{"logOffset":5}', '1:{"logOffset":1}', '0:{"tick_ms":3}']
    rows = {"metadata": "{}", "offsets/4": "\n".join(lines), "commits/4": "v1"}
    rows |= {f"sources/orders/{n}": "" for n in range(6)} | {f"sources/1/{n}": "" for n in range(2)}
    checkpoint = tmp_path / "checkpoint"
    restore(rows.items(), checkpoint)
    for later in ("sources/orders/6", "sources/1/2"):
        (checkpoint / later).write_text("of the next micro-batch")
    assert position_files(checkpoint, 4) == rows.keys()
    assert missing_entry(checkpoint, 4) is None
    (checkpoint / "sources/orders/5").unlink()
    assert missing_entry(checkpoint, 4) == "sources/orders/5"


@pytest.mark.parametrize("large", [False, True])
def test_what_sources_log_moves_with_them(tmp_path, large):
    """Also where another source had logged under the same name, before or in the first micro-batch; nothing of it is
    left, whatever the sizes."""
    long = "c" * (CHUNK_BYTES + 7)
    logs = {"b": {n: f"b{n}" for n in range(11)}, "c": {n: long if large and n == 3 else f"c{n}" for n in range(10)}}
    if large:
        logs["b"][5] = long
    rows = rows_of(["a", "tick", "b", "c"], logs)

    def write(checkpoint):
        (checkpoint / "sources/1/11").write_text("b11")
        (checkpoint / "sources/2/10").write_text("c10")

    # A file as it is held: in rows of a MiB each.
    restored = rows_of(["a", "tick", "b", "c"], {})
    for path, content in rows.items():
        if len(content) > CHUNK_BYTES:
            restored[f"{path}#00001"], restored[f"{path}#00002"] = content[:CHUNK_BYTES], content[CHUNK_BYTES:]
        else:
            restored[path] = content
    after = saved(restored, ["a", "b", "c"], tmp_path, 10, write)
    again = tmp_path / "again"
    restore(after.items(), again)
    held = {
        name: {p.name: p.read_text() for p in (again / f"sources/{place}").iterdir()}
        for place, name in ((1, "b"), (2, "c"))
    }
    assert held["b"].items() >= {str(n): text for n, text in logs["b"].items()}.items()
    assert held["c"].items() >= {str(n): text for n, text in logs["c"].items()}.items()
    assert set(held["c"].values()) <= {*logs["c"].values(), "c10"}
    assert not (again / "sources/3").exists()
