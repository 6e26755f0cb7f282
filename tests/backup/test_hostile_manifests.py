"""Places of backups that somebody else wrote to: one bad manifest is reported, and never blocks the others."""

from __future__ import annotations

import functools
import gzip
import json
import os
import resource
import shutil
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery.backup.heads import Heads
from recovery.backup.manifest import decode, encode, manifest_name, object_name
from recovery.backup.repository import list_backups, prune
from recovery.cli import main
from recovery.places.directory import DirectoryPlace
from recovery.planning.backups import KeepRule
from tests.backup.support import assert_sound, back_up, bring_back, states, work
from tests.shares import first

BAD_ID = "20200101T000000.000Z-bad0"
NEWER_ID = "29990101T000000.000Z-bad1"


@pytest.fixture
def store_dir(make_store) -> Path:
    """Two partitions with three epochs."""
    return make_store(2, work, 3)


@pytest.fixture
def place(store_dir, tmp_path) -> Path:
    """A place with one sound backup."""
    back_up(store_dir, tmp_path / "copies")
    return tmp_path / "copies"


def sound(place: Path) -> dict:
    """The JSON of the sound backup's manifest."""
    [manifest] = list_backups(DirectoryPlace(place)).manifests
    return json.loads(gzip.decompress(encode(manifest)))


def changed(value: dict, *path: str | int, to: object) -> dict:
    """The same manifest with one field of another value."""
    found = json.loads(json.dumps(value))
    at = found
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = to
    return found


def forged(place: Path, identity: str) -> list[bytes]:
    """What manifests may hold, one thing wrong in each."""
    good = {**sound(place), "id": identity}
    objects = [
        "../../../etc/passwd", "/etc/passwd", "objects//part-0/x", "objects/part-0/../../../x.sqlite3.zst",
        "objects/part-0", "", "\0", 5, None, [], "manifests/x.json.gz", good["partitions"][1]["object"],
        f"running/{identity}.json.gz",
    ]  # fmt: skip
    wrong: list[object] = [changed(good, "partitions", 0, "object", to=name) for name in objects]
    for field in ("index", "size_bytes", "stored_bytes", "taken_ms", "fingerprint", "collected"):
        wrong += [changed(good, "partitions", 0, field, to=value) for value in ("x", None, [], {}, 1.5, 1 << 70)]
    wrong += [changed(good, "partitions", 0, "taken_ms", to=value) for value in (-1, 1 << 60)]
    wrong += [changed(good, "partitions", 0, "size_bytes", to=-1), changed(good, "partitions", 0, "sha256", to="x")]
    for field in ("partitions", "store_id", "started_ms", "finished_ms", "host", "version", "format"):
        wrong += [changed(good, field, to=value) for value in (None, {}, 1.5, [[]], -1)]
        wrong.append({name: value for name, value in good.items() if name != field})
    wrong.append(changed(good, "partitions", to=[]))
    wrong.append(changed(good, "partitions", to=[good["partitions"][0]] * 2))
    wrong.append(changed(good, "started_ms", to=10**17))
    for place_of, values in (("epochs", [[1], [[1]], ["x"], {"0": 1}]), ("executions", [[1], [[]], "x"])):
        wrong += [changed(good, "partitions", 0, place_of, to=value) for value in values]
    epochs = good["partitions"][0]["epochs"]
    wrong.append(changed(good, "partitions", 0, "epochs", to=[*epochs, epochs[0]]))
    wrong.append(changed(good, "partitions", 0, "epochs", 0, 0, to=(1 << 63) - 2))
    wrong.append(changed(good, "partitions", 0, "epochs", 0, 4, to=10**18))
    wrong += [changed(good, "partitions", 0, "changes", to=value) for value in (None, {}, "x", [{}], [1])]
    link = {
        "object": object_name(identity, 0, "changes"),
        "sha256": "0" * 64,
        "size_bytes": 1,
        "stored_bytes": 1,
        "links": 1,
    }
    lies = [("object", name) for name in (*objects[:10], object_name(identity, 0), object_name(identity, 1, "changes"))]
    lies += [("links", 0), ("links", 1 << 20), ("sha256", "x"), ("size_bytes", -1), ("stored_bytes", None)]
    wrong += [changed(good, "partitions", 0, "changes", to=[{**link, name: value}]) for name, value in lies]
    # The name says another backup.
    wrong += [{**good, "id": "other"}, 5, [], None, "x"]
    texts = [json.dumps(each).encode() for each in wrong]
    deep = json.dumps(good).encode()[:-1] + b', "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    texts += [b"[" * 200_000, b'{"id":' * 200_000, deep, b"\xff\xfe", b"", b"{"]
    packed = [gzip.compress(text, 1) for text in texts]
    whole = gzip.compress(json.dumps(good).encode())
    return [*packed, b"", b"junk", whole[:-9], whole[:20], whole + whole, whole + b"tail", whole[:-4] + b"\0\0\0\0"]


@pytest.mark.parametrize("identity", [BAD_ID, NEWER_ID])
def test_a_forged_manifest_is_refused(place, identity):
    """Each is refused with a sentence, before anything that it says is used."""
    for data in forged(place, identity):
        with pytest.raises(ValueError, match="manifest") as refused:
            decode([data], identity, Heads(DirectoryPlace(place)))
        assert len(str(refused.value)) < 600


@functools.cache
def bomb(megabytes: int) -> bytes:
    """A small file that unpacks to this much."""
    return gzip.compress(b" " * (megabytes << 20), 9)


def lay(place: Path, kind: str, name: str) -> None:
    """Something else in the place of an object."""
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(here)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "circle":
        path.symlink_to(path.name)
    elif kind == "bomb":
        path.write_bytes(bomb(96))
    else:
        path.write_bytes(gzip.compress(b'{"id": 5}'))


KINDS = ("pipe", "directory", "socket", "device", "circle", "bomb", "types")


@pytest.mark.parametrize("kind", KINDS)
@first("identity", [BAD_ID, NEWER_ID])
def test_one_bad_manifest_blocks_nothing(place, store_dir, tmp_path, kind, identity):
    """The others are listed, restored, drilled, added to and pruned, and it is named."""
    name = manifest_name(identity)
    lay(place, kind, name)
    run, began = CliRunner().invoke, time.monotonic()
    listed = run(main, ["backup", "--list", str(place)])
    assert (listed.exit_code, f"{name} cannot be read" in listed.output) == (0, True)
    bring_back(place, tmp_path / "new", tmp_path)
    assert_sound(tmp_path / "new")
    assert states(tmp_path / "new") == states(store_dir)
    drilled = run(main, ["drill", str(place)])
    assert drilled.exit_code == 62
    assert f"{name} is damaged" in drilled.output
    work(store_dir, 1)
    assert run(main, ["backup", "--verify", str(store_dir), str(place), "--keep", "5"]).exit_code == 0
    prune(DirectoryPlace(place), [KeepRule(count=1)], int(time.time() * 1000) + 3 * 86_400_000)
    assert len(list_backups(DirectoryPlace(place)).manifests) == 1
    assert time.monotonic() - began < 30


@first("kind", KINDS, count=3)
def test_something_else_in_the_place_of_an_object(place, store_dir, tmp_path, kind):
    """The copy is damaged, and the backup before it is restored."""
    work(store_dir, 1)
    made = back_up(store_dir, place).manifest
    name = made.copies[0].object_name
    (place / name).unlink()
    lay(place, kind, name)
    restored = bring_back(place, tmp_path / "new", tmp_path)
    assert name in restored.left_out[0]
    assert_sound(tmp_path / "new")


@first("kind", KINDS, count=3)
def test_something_else_in_the_place_of_a_note(place, store_dir, kind):
    """Pruning goes on."""
    lay(place, kind, f"running/{BAD_ID}.json.gz")
    work(store_dir, 1)
    back_up(store_dir, place)
    prune(DirectoryPlace(place), [KeepRule(count=1)], int(time.time() * 1000) + 3 * 86_400_000)
    assert len(list_backups(DirectoryPlace(place)).manifests) == 1


def test_a_manifest_that_lies_about_others_objects(place, store_dir, tmp_path):
    """It says another digest, or other epochs, of objects that a sound one lists: the sound one is restored."""
    good = sound(place)
    digest = changed({**good, "id": NEWER_ID}, "partitions", 0, "sha256", to="0" * 64)
    newer = changed({**good, "id": BAD_ID}, "partitions", 1, "epochs", to=[])
    for each in (digest, newer):
        (place / manifest_name(each["id"])).write_bytes(gzip.compress(json.dumps(each).encode()))
    for part in newer["partitions"]:
        last = [*part["epochs"][-1]] if part["epochs"] else [4, 1, "x", 40, 4000, 4000, 1]
        part["epochs"] = [*part["epochs"], [last[0] + 50, *last[1:]]]
    (place / manifest_name(BAD_ID)).write_bytes(gzip.compress(json.dumps(newer).encode()))
    restored = bring_back(place, tmp_path / "new", tmp_path)
    assert_sound(tmp_path / "new")
    assert states(tmp_path / "new") == states(store_dir)
    assert restored.left_out


def test_an_object_that_unpacks_to_more_than_the_manifest_says(place, store_dir, tmp_path):
    """No more of it is written than the manifest allows."""
    import pyarrow

    work(store_dir, 1)
    made = back_up(store_dir, place).manifest
    path = place / made.copies[0].object_name
    path.write_bytes(pyarrow.Codec("zstd").compress(b"\0" * (256 << 20), asbytes=True))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_oublock
    restored = bring_back(place, tmp_path / "new", tmp_path)
    assert object_name(made.id, 0) in restored.left_out[0]
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_oublock - before) * 512 < 64 << 20
    back_up(store_dir, place, check=True)
    assert not bring_back(place, tmp_path / "newer", tmp_path).left_out


def test_a_forged_chain(place, store_dir, tmp_path):
    """A whole copy as a link, the link of another partition, a link twice, and links in another order: none replays.
    The backup before is restored."""
    for _ in range(2):
        work(store_dir, 1)
        made = back_up(store_dir, place, incremental=True)
        assert made.linked == 2
    good = json.loads(gzip.decompress(encode(made.manifest)))
    first, second = good["partitions"][0]["changes"]
    other = good["partitions"][1]["changes"][1]
    copied = {**other, "object": object_name(NEWER_ID, 0, "changes")}
    (place / copied["object"]).write_bytes((place / other["object"]).read_bytes())
    whole = {**good["partitions"][0], "object": object_name(NEWER_ID, 0, "changes"), "links": 1}
    whole = {name: whole[name] for name in first}
    for changes in ([first, first], [second, first], [second], [first, copied], [first, second, second], [whole]):
        if changes == [whole]:
            (place / whole["object"]).write_bytes((place / good["partitions"][0]["object"]).read_bytes())
        forged = changed({**good, "id": NEWER_ID}, "partitions", 0, "changes", to=changes)
        forged["partitions"][0]["taken_ms"] += 1
        (place / manifest_name(NEWER_ID)).write_bytes(gzip.compress(json.dumps(forged).encode()))
        restored = bring_back(place, tmp_path / "new", tmp_path)
        assert restored.left_out
        assert_sound(tmp_path / "new")
        assert states(tmp_path / "new") == states(store_dir)
        shutil.rmtree(tmp_path / "new")
