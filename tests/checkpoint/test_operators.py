"""Operators by the names of files; schemas that name their own place; progress; places."""

from __future__ import annotations

import json

import pytest

from recovery.checkpoint.directories import is_uri, may_be_needed, newest_batch
from recovery.checkpoint.relocate import names_location, relocated
from recovery.checkpoint.state_stores.operators import operators_of
from recovery.errors import SparkCheckpointError

VARIABLES = [{"stateName": "n"}, {"stateName": "seen"}, {"stateName": "$timers", "stateVariableType": "TimerState"}]


def described(name, stores, **more):
    """An operator's own file."""
    info = [{"storeName": store, "numColsPrefixKey": 0, "numPartitions": 3} for store in stores]
    return "v1\n" + json.dumps(
        {"operatorInfo": {"operatorId": 0, "operatorName": name}, "stateStoreInfo": info, **more}
    )


def test_operators_stores_and_variables():
    """Of several operators, with one store and with four, with files of two kinds of state store."""
    files = {
        "metadata": described("x", []),
        "offsets/3": "",
        "state/0/_metadata/metadata": described("stateStoreSave", ["default"]),
        "state/0/0/1.delta": "a",
        "state/0/2/2.delta": "bb",
        "state/0/0/_metadata/schema": "cc",
        "state/1/_metadata/metadata": described("symmetricHashJoin", ["left-keyToNumValues", "right-keyToNumValues"]),
        "state/1/0/left-keyToNumValues/4.zip": "dddd",
        "state/1/0/left-keyToNumValues/SSTs/7-ab.sst": "eeee",
        "state/2/_metadata/v2/0": described("old", ["default"]),
        "state/2/_metadata/v2/10": described(
            "transformWithStateExec",
            ["default"],
            operatorPropertiesJson=json.dumps({"stateVariables": VARIABLES}),
        ),
        "state/3/0/1.changelog": "f",
    }
    sizes = {path: len(content) for path, content in files.items()}
    found = operators_of(sizes, files.__getitem__)
    assert [(o.number, o.name, o.stores, o.partitions) for o in found] == [
        (0, "stateStoreSave", ("default",), 3),
        (1, "symmetricHashJoin", ("left-keyToNumValues", "right-keyToNumValues"), 3),
        (2, "transformWithStateExec", ("default",), 3),
        (3, "", ("default",), 1),
    ]
    assert [(o.variables, o.timers) for o in found] == [((), False), ((), False), (("n", "seen"), True), ((), False)]
    assert [(o.oldest_version, o.newest_version) for o in found] == [(1, 2), (4, 4), (None, None), (1, 1)]
    assert found[0].files == 4
    assert found[1].size_bytes == sum(size for path, size in sizes.items() if path.startswith("state/1/"))


@pytest.mark.parametrize("content", ["", "v1", "v1\n{}", "v1\n[]", "v1\nnull", b"\xff\xfe", 'v9\n{"operatorInfo": 3}'])
def test_an_operator_that_does_not_say_its_name(content):
    """It is listed all the same."""
    files = {"state/0/_metadata/metadata": content, "state/0/0/1.delta": ""}
    [found] = operators_of(dict.fromkeys(files, 1), files.__getitem__)
    assert (found.name, found.stores, found.partitions) == ("", ("default",), 1)


def test_schemas_are_named_where_the_checkpoint_stands():
    """The paths below the operator stay, the place before them changes; nothing else does."""
    path = "state/0/_metadata/v2/0"
    assert names_location(path)
    assert not names_location("state/0/_metadata/metadata")
    old = {
        "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateExec"},
        "stateStoreInfo": [
            {
                "storeName": "default",
                "stateSchemaFilePaths": ["hdfs://n:1/a/state/0/b/state/0/_stateSchema/default/0_x"],
            },
            {"storeName": "other"},
        ],
        "operatorPropertiesJson": '{"é":1}',
    }
    moved = relocated(path, f"v2\n{json.dumps(old)}".encode(), "file:/there/").decode()
    version, _, text = moved.partition("\n")
    assert version == "v2"
    old["stateStoreInfo"][0]["stateSchemaFilePaths"] = ["file:/there/state/0/_stateSchema/default/0_x"]
    assert json.loads(text) == old


@pytest.mark.parametrize(
    "content", [b"", b"v2\n{}", b"\xff", b'v2\n{"stateStoreInfo":[{"stateSchemaFilePaths":["/x"]}]}']
)
def test_schemas_of_another_form_are_refused(content):
    """Better than a path that leads nowhere."""
    with pytest.raises(SparkCheckpointError, match="form"):
        relocated("state/0/_metadata/v2/0", content, "file:/there")


def test_what_is_a_uri():
    """A scheme and a path; a Windows drive or a file called a:b is none."""
    assert all(map(is_uri, ["hdfs://n:8020/x", "s3a://b/x", "file:/x", "file:///x"]))
    assert not any(map(is_uri, ["x", "/x", "./a:b", "a:b", "x y:/z"]))


def test_what_may_be_needed_of_a_listing():
    """One chain of each store, every log of sources, nothing of later versions or other micro-batches."""
    versions = [f"state/0/0/{version}.delta" for version in range(1, 5)]
    logs = ["offsets/1", "offsets/2", "offsets/3", "commits/1", "commits/2", "sources/0/0", "sources/0/9.compact"]
    paths = ["metadata", *logs, *versions, "state/0/0/2.snapshot", "state/0/_metadata/metadata"]
    assert newest_batch(paths, "here") == 2
    assert may_be_needed(paths, 2) == sorted([
        "metadata", "offsets/2", "commits/2", "sources/0/0", "sources/0/9.compact", "state/0/0/2.snapshot",
        "state/0/0/3.delta", "state/0/_metadata/metadata",
    ])  # fmt: skip
    with pytest.raises(SparkCheckpointError, match=r"3\.delta is missing"):
        may_be_needed([path for path in paths if path != "state/0/0/3.delta"], 2)
