"""States that are declared by columns."""

from __future__ import annotations

import json
import pickle
from collections import namedtuple
from decimal import Decimal
from typing import Annotated

import msgspec
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from recovery import ConfigurationError, GroupState
from recovery.errors import StateValueError
from recovery.spark.steps.state_columns import state_type
from recovery.values.codec import StateCodec, make_portable
from recovery.values.columns import arranging
from recovery.values.declaration import form_of, misfits, shown
from recovery.values.fits import state_check

SCHEMA = T.StructType([
    T.StructField("user_id", T.IntegerType(), False),
    T.StructField("count", T.ByteType()),
    T.StructField("price", T.DecimalType(4, 2)),
    T.StructField("ratio", T.FloatType()),
    T.StructField("tags", T.ArrayType(T.StringType(), False)),
])  # fmt: skip
KIND = state_type("users", SCHEMA)
GOOD = (7, 127, Decimal("12.34"), 0.5, ["a"])
NAMED = dict(zip(SCHEMA.names, GOOD, strict=True))


@pytest.mark.parametrize(
    "given",
    [GOOD, NAMED, dict(reversed(NAMED.items())), Row(*GOOD), Row(**NAMED), Row(**dict(reversed(NAMED.items()))),
     namedtuple("N", NAMED)(**NAMED), namedtuple("N", reversed(NAMED))(**NAMED)],
    ids=["tuple", "dict", "dict in another order", "row", "row with names", "row in another order", "named tuple",
         "named tuple in another order"],
)  # fmt: skip
def test_a_state_of_columns(given):
    """A state is given as a tuple, or by names as a dict, a Row or a named tuple, and comes as a tuple whose parts have
    names; what came can be given back, and sent elsewhere."""
    codec = StateCodec(KIND)
    text = codec.encode(given)
    assert text == '[7,127,"12.34",0.5,["a"]]'
    back = codec.decode(text)
    assert back == GOOD
    assert (back[0], back["user_id"], back["tags"], back[1:3]) == (7, 7, ["a"], GOOD[1:3])
    assert codec.encode(back) == text
    assert pickle.loads(pickle.dumps(back)) == GOOD
    with pytest.raises(KeyError):
        back["other"]
    assert codec.decode(codec.encode({"user_id": 7})) == (7, None, None, None, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"user_id": None}, "`null` - at `$.user_id`"), ({"user_id": 2**31}, "<= 2147483647 - at `$.user_id`"),
     ({"user_id": "7"}, "`str` - at `$.user_id`"), ({"user_id": 7.5}, "`float` - at `$.user_id`"),
     ({"count": 128}, "<= 127 - at `$.count`"), ({"count": -129}, ">= -128 - at `$.count`"),
     ({"price": Decimal("1.234")}, "1.234 is no decimal(4,2) - at `$.price`"),
     ({"price": Decimal("123.4")}, "123.4 is no decimal(4,2) - at `$.price`"),
     ({"price": Decimal("NaN")}, "NaN is no decimal(4,2) - at `$.price`"), ({"ratio": 1e39}, "at `$.ratio`"),
     ({"tags": [None]}, "at `$.tags[0]`"), ({"extra": 1}, "'extra', which is none of the columns user_id, count")],
    ids=str,
)  # fmt: skip
def test_a_state_that_violates_its_columns(change, said):
    """Nullability, range and type are those of the schema, and the error names the column."""
    value = NAMED | change
    with pytest.raises(StateValueError) as raised:
        StateCodec(KIND).encode(value)
    assert said in raised.value.found
    state = GroupState.of(GOOD, state=KIND)
    with pytest.raises(StateValueError):
        state.update(value)
    with pytest.raises(StateValueError):
        StateCodec(KIND).encode(GOOD[:2])


@pytest.mark.parametrize(
    "make", [Row, lambda **of: namedtuple("N", of)(**of), dict], ids=["Row", "named tuple", "dict"]
)
def test_names_decide(make):
    """Of a row of the right length, too: other names are refused, also within a column, and those that lack are NULL.
    A plain tuple goes by place."""
    one = T.StructType([T.StructField("x", T.LongType()), T.StructField("y", T.StringType())])
    kind = state_type("users", T.StructType([T.StructField("n", T.LongType()), T.StructField("one", one)]))
    codec = StateCodec(kind)
    wrong = [
        (make(m=1, one=None), "has 'm', which is none of the columns n, one"),
        (make(n=1, one=make(x=1, z="a")), "has 'z', which is none of the fields x, y"),
        ((1, make(x=1, z="a")), "has 'z', which is none of the fields x, y"),
        (make(n=1, one=None, more=2), "has 'more', which is none of the columns n, one"),
    ]
    for value, said in wrong:
        with pytest.raises(StateValueError, match=said) as raised:
            codec.encode(value)
        assert ("plain tuple" in raised.value.remedy) is (make is not dict)
    for value in (make(one=make(y="a", x=2), n=1), (1, make(y="a", x=2)), (1, (2, "a")), make(n=1, one=(2, "a"))):
        assert codec.encode(value) == '[1,[2,"a"]]'
    assert codec.encode(make(one=make(y="a"))) == '[null,[null,"a"]]'
    state = GroupState.of(state=kind)
    with pytest.raises(StateValueError, match="none of the columns n, one"):
        state.update(make(m=1, one=None))


def test_a_stored_state_of_columns():
    """By its declaration a hand edit is checked like the step's own; the declaration holds names, types and ranges."""
    form = json.loads(json.dumps(form_of(KIND)))
    assert shown(form) == "columns(user_id, count, price, ratio, tags)"
    check = state_check(form)
    assert check('[7,127,"12.34",0.5,["a"]]') is None
    assert "`$.count`" in (check('[7,128,"12.34",0.5,["a"]]') or "")
    assert "`$.user_id`" in (check('[null,1,"12.34",0.5,["a"]]') or "")
    with pytest.raises(ValueError, match=r"at `\$\.count`"):
        StateCodec(KIND).decode('[7,128,"12.34",0.5,["a"]]')
    swapped = T.StructType([SCHEMA[1], SCHEMA[0], *SCHEMA[2:]])
    assert "position 0 of the state was 'user_id' and is 'count'" in "; ".join(
        misfits(form, form_of(state_type("s", swapped)))
    )
    nullable = T.StructType([T.StructField("user_id", T.IntegerType()), *SCHEMA[1:]])
    assert list(misfits(form, form_of(state_type("s", nullable)))) == []
    assert list(misfits(form_of(state_type("s", nullable)), form)) != []


def test_a_type_of_columns_can_be_sent():
    """To the workers, as it is."""
    make_portable(KIND)
    assert StateCodec(pickle.loads(pickle.dumps(KIND))).encode(GOOD) == StateCodec(KIND).encode(GOOD)
    limited = pickle.loads(pickle.dumps(Annotated[str, msgspec.Meta(max_length=2, pattern="a")]))
    assert limited == Annotated[str, msgspec.Meta(max_length=2, pattern="a")]


def test_a_column_that_a_state_cannot_have():
    """The error names the step and the type."""
    with pytest.raises(ConfigurationError, match=r"step 'users'.*interval"):
        state_type("users", T.StructType([T.StructField("x", T.YearMonthIntervalType())]))


def nested(*names: str, kind: T.DataType = T.LongType()) -> T.StructType:  # noqa: B008 - it is never changed
    """Columns with a struct of these fields: alone, in an array, and in the values of a map."""
    struct = T.StructType([T.StructField(name, kind) for name in names])
    every = {"n": T.LongType(), "one": struct, "many": T.ArrayType(struct), "named": T.MapType(T.StringType(), struct)}
    return T.StructType([T.StructField(name, of) for name, of in every.items()])


def test_rows_within_a_row_go_by_their_names():
    """At any depth, NULL included; a field that the row lacks is NULL, and one that the columns lack is refused."""
    kind = state_type("users", nested("x", "y"))
    row, arrange = Row("y", "x"), arranging(msgspec.inspect.type_info(kind))
    given = Row(named={"k": row(6, 5), "l": None}, many=[row(4, 3), None], one=row(2, 1), n=7)
    back = arrange(given)
    assert back == (7, (1, 2), [(3, 4), None], {"k": (5, 6), "l": None})
    assert StateCodec(kind).decode(StateCodec(kind).encode(back)) == back
    assert arrange((7, row(2, 1), [], {})) == (7, (1, 2), [], {})
    assert arrange({"n": 7, "one": {"y": 2}}) == (7, (None, 2), None, None)
    assert arrange(Row(n=7, one=(1, 2))) == (7, (1, 2), None, None)
    for bad in (Row(one=Row(x=1, z=2)), {"many": [{"x": 1, "z": 2}]}, Row(named={"k": Row(z=1)}), Row(z=1)):
        with pytest.raises(StateValueError, match="has 'z', which is none of"):
            arrange(bad)
    with pytest.raises(StateValueError, match="has a name twice"):
        arrange(Row(one=Row("x", "x")(1, 2)))


def test_a_struct_within_columns_is_declared_with_its_names():
    """Other names are reported, or another order; a declaration of an earlier version, without names, fits by place."""
    form = {names: form_of(state_type("users", nested(*names))) for names in (("x", "y"), ("y", "x"), ("x",))}
    assert list(misfits(form["x", "y"], form["x", "y"])) == []
    reported = list(misfits(form["x", "y"], form["y", "x"]))
    assert len(reported) == 3
    assert reported[0].startswith("'one' of the state was struct(x, y)")
    assert list(misfits(form["x", "y"], form["x",]))
    before = json.loads(json.dumps(form["x", "y"]).replace('{"named tuple": "struct", "fields": ', '{"tuple": '))

    def unnamed(of: object) -> object:
        if isinstance(of, list):
            return [unnamed(each) for each in of]
        if not isinstance(of, dict):
            return of
        if "tuple" in of:
            return {"tuple": [unnamed(kind) for _, kind, _ in of["tuple"]]}
        return {name: unnamed(each) for name, each in of.items()}

    before = unnamed(before)
    assert "tuple" in json.dumps(before)
    assert list(misfits(before, form["y", "x"])) == []
    assert list(misfits(before, form_of(state_type("users", nested("x", "y", kind=T.StringType())))))
    kind = state_type("users", nested("x", "y"))
    again = pickle.loads(pickle.dumps(kind))
    assert form_of(again) == form["x", "y"]
