"""Keys of Spark's operators as keys of a step: what is kept, what the user's function decides, and what is refused."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import NamedTuple

import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from recovery.errors import ConfigurationError, StateValueError
from recovery.operators.mapping import SparkKey, StepMapping, map_keys
from recovery.spark.sources.operator_keys import converter
from recovery.spark.steps.state_columns import state_type
from recovery.values.codec import StateCodec
from recovery.values.declaration import form_of

INNER = T.StructType().add("x", "double").add("tags", T.ArrayType(T.StringType()))
KEPT = state_type("step", T.StructType().add("n", "long").add("name", "string").add("inner", INNER))
COLUMNS = state_type("step", T.StructType().add("n", "long").add("name", "string"))
Inner = Row("x", "tags")
State = Row("n", "name", "inner")


@dataclass
class Session:
    n: int
    name: str | None = None


class Pair(NamedTuple):
    n: int
    name: str | None


def key(text="a", state=None, times=()):
    return SparkKey(text, text, state, times)


def random_keys(seed):
    """Keys with random states, and with no, one or several times; some have times only, some nothing any more."""
    generator = random.Random(seed)
    for number in range(generator.randrange(60)):
        name = generator.choice([None, "", "é", "␀", f"name {number}"])
        inner = generator.choice([None, Inner(0.5, ["a", None]), Inner(None, [])])
        state = generator.choice([None, *[State(generator.randrange(-(2**63), 2**63), name, inner)] * 4])
        times = tuple(sorted(generator.sample(range(1, 1 << 41), generator.choice([0, 0, 1, 1, 2]))))
        yield key(f"k{number}", state, times)


def plain(state):
    """A state as Python's own tuples."""
    inner = None if state.inner is None else (state.inner.x, state.inner.tags)
    return state.n, state.name, inner


@pytest.mark.parametrize("seed", range(30))
def test_a_function_with_times_decides_all(seed):
    """Against a model: what it returns is what the step reads, with the timeout that it gave, and nothing else."""
    keys, model, left_out, expired = list(random_keys(seed)), {}, 0, 0

    def moved(name, state, times):
        if state is None or state.n % 5 == 0:
            return None if len(times) != 1 else (None, 7)
        return {"n": state.n, "times": list(times)}, times[-1] if times else None

    for each in keys:
        made = None if each.state is None and not each.times else moved(each.key, each.state, each.times)
        if each.state is None and not each.times:
            expired += 1
        elif made is None or made[0] is None:
            left_out += 1
        else:
            model[each.text] = made
    found = map_keys(iter(keys), StepMapping(moved, None, KEPT))
    decode = StateCodec(None).decode
    assert {text: (decode(value), timeout) for text, (value, timeout) in found.states.items()} == model
    assert (found.seen, found.left_out, found.expired) == (len(keys), left_out, expired)
    assert found.timeouts == sum(timeout is not None for _, timeout in model.values())
    assert found.form == (form_of(None) if model else None)


@pytest.mark.parametrize("seed", range(30))
def test_states_are_kept_or_named(seed):
    """Against a model: without a function, a step with the job's columns reads the job's states. Keys with several
    times, and keys with a time and no state, are counted and named, and then nothing is taken over."""
    keys = list(random_keys(seed))
    refused = [each for each in keys if len(each.times) > 1 or (each.state is None and each.times)]
    if refused:
        with pytest.raises(StateValueError, match=f"^{len(refused)} of {len(keys)} keys? cannot be taken") as error:
            map_keys(iter(keys), StepMapping(None, None, KEPT))
        assert all(f"key {each.key!r}: it has" in error.value.found for each in refused[:20])
        assert ("other key" in error.value.found) == (len(refused) > 20)
        keys = [each for each in keys if each not in refused]
    found = map_keys(iter(keys), StepMapping(None, None, KEPT))
    decode = StateCodec(KEPT).decode
    assert {text: (tuple(decode(value)), timeout) for text, (value, timeout) in found.states.items()} == {
        each.text: (plain(each.state), each.times[0] if each.times else None) for each in keys if each.state is not None
    }
    assert found.form == (form_of(KEPT) if found.states else None)


def random_type(generator, depth=0):
    """A type of Spark, and a function that makes a random value: as Spark gives that value, and as a step has it."""
    local = datetime(2024, 3, 31, 1, 30).replace  # noqa: DTZ001 - in the local zone, as Spark gives moments
    simple = [
        (T.LongType(), lambda g: [g.randrange(-(2**63), 2**63)] * 2),
        (T.ByteType(), lambda g: [g.randrange(-128, 128)] * 2),
        (T.DoubleType(), lambda g: [g.choice([0.1, -0.0, 1e300, 5e-324])] * 2),
        (T.BooleanType(), lambda g: [g.choice([True, False])] * 2),
        (T.StringType(), lambda g: [g.choice(["", "é", "␀", "\0", '"'])] * 2),
        (T.DateType(), lambda g: [date(g.randrange(1, 9999), 2, 28)] * 2),
        (T.DecimalType(10, 2), lambda g: [Decimal(g.randrange(-(10**9), 10**9)).scaleb(-2)] * 2),
        (T.BinaryType(), lambda g: (bytearray(b"\0\xff"), b"\0\xff")),
        (T.TimestampType(), lambda g: (at := local(microsecond=g.randrange(10**6)), at.astimezone(UTC))),
    ]
    if depth == 3 or generator.random() < 0.5:
        return generator.choice(simple)
    kinds = [random_type(generator, depth + 1) for _ in range(generator.randrange(1, 4))]

    def part(make):
        return lambda g: (None, None) if g.random() < 0.2 else make(g)

    if generator.random() < 0.4:
        names = [f"c{number}" for number in range(len(kinds))]
        struct = T.StructType([T.StructField(name, kind) for name, (kind, _) in zip(names, kinds, strict=True)])

        def made(g):
            given, wanted = zip(*(part(make)(g) for _, make in kinds), strict=True)
            return Row(*names)(*given), wanted

        return struct, made
    kind, make = kinds[0]
    if generator.random() < 0.5:

        def listed(g):
            pairs = [part(make)(g) for _ in range(g.randrange(3))]
            return [one for one, _ in pairs], [other for _, other in pairs]

        return T.ArrayType(kind), listed

    def mapped(g):
        pairs = {str(number): part(make)(g) for number in range(g.randrange(3))}
        return {key: one for key, (one, _) in pairs.items()}, {key: other for key, (_, other) in pairs.items()}

    return T.MapType(T.StringType(), kind), mapped


@pytest.mark.parametrize("seed", range(150))
def test_a_step_reads_states_of_random_types(seed):
    """Against a model: what Spark gives for a state of these columns, nested at any depth, is what a step with the same
    columns reads."""
    generator = random.Random(seed)
    columns = [random_type(generator) for _ in range(generator.randrange(1, 5))]
    names = [f"c{number}" for number in range(len(columns))]
    schema = T.StructType([T.StructField(name, kind) for name, (kind, _) in zip(names, columns, strict=True)])
    kept, convert, model, keys = state_type("step", schema), converter(schema), {}, []
    for number in range(20):
        given, wanted = zip(*(make(generator) for _, make in columns), strict=True)
        keys.append(key(f"k{number}", convert(Row(*names)(*given))))
        model[f"k{number}"] = wanted
    found = map_keys(keys, StepMapping(None, None, kept))
    decode = StateCodec(kept).decode
    assert {text: tuple(decode(value)) for text, (value, _) in found.states.items()} == model


@pytest.mark.parametrize(
    ("made", "given", "kind"),
    [
        (Session(1, "a"), None, Session),
        (Pair(1, "a"), None, Pair),
        ({"n": 1}, None, None),
        ([1, "a"], None, None),
        (7, None, None),
        ((1, "a"), COLUMNS, ...),
        ({"n": 1}, COLUMNS, ...),
        ({1, 2}, "pickle", "pickle"),
    ],
)
def test_the_states_decide_the_type_unless_it_is_given(made, given, kind):
    """A class with fields stands for itself, as in a step; what a step with `state=` of that type reads is equal."""
    kind = given if kind is ... else kind
    found = map_keys([key("a", 1), key("b", 2)], StepMapping(lambda key, state: made, given, KEPT))
    assert found.form == form_of(kind)
    codec = StateCodec(kind)
    assert {text for text, _ in found.states.values()} == {codec.encode(made)}


SWAPPED = state_type("step", T.StructType().add("name", "string").add("n", "long"))
Part = Row("n", "name")


@pytest.mark.parametrize(
    ("function", "timeout"),
    [(None, None), (lambda key, state: state, None), (lambda key, state, times: (state, 7), 7)],
)
def test_rows_go_into_columns_by_name(function, timeout):
    """Whatever the order in which the user names the columns; a column that the row lacks is NULL, and one that it
    alone has is refused. Without columns, a function's row is refused."""
    keys = [key(state=Part(7, "é"))]
    found = map_keys(keys, StepMapping(function, SWAPPED, None))
    assert found.states == {"a": ('["é",7]', timeout)}
    more = state_type("step", T.StructType().add("more", "long").add("name", "string").add("n", "long"))
    assert map_keys(keys, StepMapping(function, more, None)).states == {"a": ('[null,"é",7]', timeout)}
    with pytest.raises(StateValueError, match="has 'name', which is none of the columns n"):
        map_keys(keys, StepMapping(function, state_type("step", T.StructType().add("n", "long")), None))
    if function is not None:
        with pytest.raises(StateValueError, match="would come back as list"):
            map_keys(keys, StepMapping(function, None, None))


def fails(error):
    def function(key, state):
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (fails(KeyError("n")), "KeyError: 'n'"),
        (fails(SystemError("x")), "SystemError: x"),
        (fails(SystemExit(0)), "SystemExit: 0"),
        (lambda key, state: (1, 2), "would come back as"),
        (lambda key, state: float("nan"), "float nan"),
        (lambda key, state: {1: 2}, "dict {1: 2}"),
        (lambda key, state: state.nothing, "AttributeError"),
        (lambda key, state: (each for each in ()), "returned a generator"),
        (lambda key, state, times: state, "a function of three arguments returns"),
        (lambda key, state, times: (1, 2, 3), "a function of three arguments returns"),
        (lambda key, state, times: [1, None], "a function of three arguments returns"),
        (lambda key, state, times: (1, 0), "the timeout 0"),
        (lambda key, state, times: (1, -5), "the timeout -5"),
        (lambda key, state, times: (1, 2.5), "the timeout 2.5"),
        (lambda key, state, times: (1, True), "the timeout True"),
        (lambda key, state, times: (1, 1 << 60), "the timeout 11"),
    ],
)
def test_what_a_function_does_wrong_names_the_key(function, why):
    """Every key is tried; the error has the first ones."""
    keys = [key(f"key {number}", State(1, "a", None), (5,)) for number in range(30)]
    with pytest.raises(StateValueError) as error:
        map_keys(keys, StepMapping(function, None, KEPT))
    first, *lines = error.value.found.split("\n")
    assert first == "30 of 30 keys cannot be taken over; nothing was written"
    assert len(lines) == 21
    assert lines[0].startswith("  key 'key 0': ")
    assert why in lines[0]
    assert lines[-1] == "  and 10 other keys"


def test_two_keys_of_one_text_are_refused():
    """Which of them counts would depend on their order."""
    with pytest.raises(StateValueError, match="another key has the same text"):
        map_keys([key("a", State(1, "a", None))] * 2, StepMapping(None, None, KEPT))


def test_a_function_is_called_once_for_each_key():
    """A function may change what it gets."""
    keys = [key(str(number), [number]) for number in range(3)]

    def grows(name, state):
        state.append(0)
        return state

    found = map_keys(keys, StepMapping(grows, None, None))
    assert [text for text, _ in found.states.values()] == ["[0,0]", "[1,0]", "[2,0]"]


async def later(key, state):
    return state


def yields(key, state):
    yield state


def scaled(key, state, scale=100):
    return state.n, state.n * scale


@pytest.mark.parametrize(
    "function", [later, yields, lambda: 1, lambda key: 1, lambda a, b, c, d: 1, scaled, lambda *each: each]
)
def test_a_function_of_another_form_is_refused_before_a_key_is_read(function):
    """Such a function would run for no key, or fail for each; or nobody knows whether the second part of what it
    returns is a timeout."""
    with pytest.raises(ConfigurationError):
        StepMapping(function, None, KEPT)
