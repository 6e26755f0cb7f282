"""What manifests have in common: short manifests, and what happens when their head is lost or was changed."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.backup.heads import MOST_OWN, Heads, fits, new_head, with_head, without_head
from recovery.backup.manifest import OF_WHOLE_COPIES, decode, encode, encode_copy, fingerprint_until_2, manifest_name
from recovery.backup.repository import list_backups, prune
from recovery.base.clock import SystemClock
from recovery.errors import NoBackupError
from recovery.places.directory import DirectoryPlace
from recovery.planning.backups import KeepRule
from recovery.replication.shipper import Shipper
from recovery.storage.copies import PinnedPartition
from tests.backup.standby.support import followed
from tests.backup.support import assert_sound, back_up, bring_back, states, work
from tests.stores import paths_of


@pytest.fixture(scope="module")
def made(store_maker, tmp_path_factory):
    """A directory, and a place with more backups of its chain than a manifest lists by itself."""
    directory, target = store_maker(2), tmp_path_factory.mktemp("made") / "dest"
    work(directory, 1)
    for _ in range(2 * MOST_OWN + 3):
        back_up(directory, target, incremental=True)
        work(directory, 1)
    return directory, target


@pytest.fixture
def place(made, store_dir, tmp_path):
    """A copy of that place, and of the directory in `store_dir`."""
    directory, target = made
    shutil.copytree(directory, store_dir, dirs_exist_ok=True)
    return DirectoryPlace(Path(shutil.copytree(target, tmp_path / "dest")))


def heads(place):
    """The names of the heads at a place."""
    return [entry.name for entry in place.entries("objects/heads/")]


def test_manifests_of_a_chain_share_heads(place):
    """Each is the same backup as with everything in the manifest, and shorter."""
    manifests = list_backups(place).manifests
    named = [manifest.head.object for manifest in manifests if manifest.head is not None]
    assert sorted(set(named)) == heads(place)
    assert 2 <= len(set(named)) < len(named)
    for manifest in manifests:
        alone = encode(replace(manifest, head=None))
        assert replace(decode([alone], manifest.id, Heads(place)), head=manifest.head) == manifest
        assert manifest.head is None or len(encode(manifest)) < len(alone)


def test_a_manifest_of_whole_copies_has_no_head(store_dir, tmp_path):
    """However many executions it lists: older versions restore such a backup, and read no heads."""
    for _ in range(MOST_OWN + 2):
        work(store_dir, 1)
    manifest = back_up(store_dir, tmp_path / "dest").manifest
    assert manifest.head is None
    assert json.loads(gzip.decompress(encode(manifest)))["format"] == OF_WHOLE_COPIES


def test_the_cost_of_a_shipping_does_not_grow_with_the_held_epochs(store_dir, tmp_path):
    """A manifest lists the epochs since the backup before, however many the partitions hold."""
    sizes = []
    # Large enough that no chain grows larger than its whole copy.
    work(store_dir, 1, keys=3_000)
    shipper = Shipper(store_dir, DirectoryPlace(tmp_path / "dest"), clock=SystemClock(), random_id=lambda: "ab")
    shipper.ship()
    for _ in range(3):
        work(store_dir, 20, keys=4)
        shipper.ship()
        work(store_dir, 1, keys=4)
        manifest = shipper.ship().made.manifest
        sizes.append(len(encode(manifest)))
        assert [len(copy.description.epochs) for copy in manifest.copies] == [2] * len(manifest.copies)
    assert [copy.description.unlisted + 2 for copy in manifest.copies] == [3 * 21 + 1] * len(manifest.copies)
    assert max(sizes) < 2500
    bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
    assert_sound(tmp_path / "new")
    assert states(tmp_path / "new") == states(store_dir)


@pytest.mark.parametrize("how", ["missing", "flipped", "another"])
def test_a_head_that_is_not_what_it_was(place, store_dir, tmp_path, how):
    """The backups that name it cannot be read, and are reported; the others count, and the next backup needs none of
    them. Pruning keeps what such backups may need."""
    [first, *_, last] = heads(place)
    path = place.root / last
    if how == "missing":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes((place.root / first).read_bytes() if how == "another" else content[:-1] + b"x")
    before = len(place.entries("objects/"))
    found = list_backups(place)
    assert found.unreadable
    assert found.manifests
    prune(place, [KeepRule(count=100)], 0)
    assert len(place.entries("objects/")) == before
    bring_back(place.root, tmp_path / "older", tmp_path)
    back_up(store_dir, place.root, incremental=True)
    bring_back(place.root, tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == states(store_dir)


def test_pruning_keeps_the_heads_of_backups_that_stay(place, tmp_path):
    """And no others."""
    newest = list_backups(place).newest
    prune(place, [KeepRule(count=1)], 0)
    assert heads(place) == [newest.head.object]
    bring_back(place.root, tmp_path / "new", tmp_path)


@pytest.mark.parametrize(
    "name", ["objects/heads/../../x.json.gz", "/etc/passwd", "objects/part-0/x.sqlite3.zst", "objects/heads/x", ""]
)
def test_a_forged_name(place, name):
    """Nothing but a head is read."""
    newest = list_backups(place).newest
    text = json.loads(gzip.decompress(encode(newest)))
    text["head"]["object"] = name
    with pytest.raises(ValueError, match=r"not the name of a head|missing"):
        decode([gzip.compress(json.dumps(text).encode())], newest.id, Heads(place))


@pytest.mark.parametrize(
    ("field", "value"),
    [("shared", [99, 0]), ("shared", [-1, 0]), ("shared", [0]), ("shared", None), ("shared", ["a", "b"]),
     ("changes", 5), ("executions", {}), ("unlisted", 99), ("unlisted", 1)],
)  # fmt: skip
def test_a_forged_manifest_with_a_head(place, field, value):
    """Such a manifest is refused with a sentence."""
    newest = list_backups(place).newest
    text = json.loads(gzip.decompress(encode(newest)))
    text["partitions"][0][field] = value
    with pytest.raises(ValueError, match="manifest"):
        decode([gzip.compress(json.dumps(text).encode())], newest.id, Heads(place))


@pytest.mark.parametrize(
    "part", [{}, {"executions": 5}, {"executions": [5]}, {"executions": [[[]]]}, {"executions": []}]
)
def test_a_forged_head(place, part):
    """A head that is what its manifest says, and is none, is refused with a sentence."""
    newest = list_backups(place).newest
    content = gzip.compress(json.dumps({"parts": [part] * len(newest.copies)}).encode())
    place.write(newest.head.object, [content])
    text = json.loads(gzip.decompress(encode(newest)))
    text["head"]["sha256"] = hashlib.sha256(content).hexdigest()
    with pytest.raises(ValueError, match="not a manifest"):
        decode([gzip.compress(json.dumps(text).encode())], newest.id, Heads(place))


def test_heads_share_what_they_list(place):
    """A directory in which runs begin every few minutes has thousands of executions, and a place hundreds of heads."""
    found = {m.head.object: m.head for m in list_backups(place).manifests if m.head is not None}
    one, other, *_ = found.values()
    assert one.parts[0]["executions"][0] is other.parts[0]["executions"][0] is other.parts[1]["executions"][0]


def test_a_head_of_other_partitions_does_not_fit(place):
    """As many copies, of the same objects, are needed."""
    copies = [encode_copy(copy) for copy in list_backups(place).newest.copies]
    head, _ = new_head("x", copies)
    assert fits(head, copies)
    assert not fits(head, copies[:-1])
    assert not fits(head, [{**copies[0], "sha256": "0" * 64}, *copies[1:]])
    assert not fits(None, copies)
    text = json.dumps(without_head(copies, head)).encode()
    assert with_head(text, head)["partitions"] == [{**copy, "shared": [len(copy["changes"]), len(copy["executions"])]}
                                                   for copy in copies]  # fmt: skip
    with pytest.raises(ValueError, match="fit"):
        with_head(b'{"partitions": [1, 2, 3]}', head)


def test_a_place_of_format_2(store_dir, tmp_path):
    """Manifests of format 2 list every epoch and have another fingerprint; all are restored and followed."""
    work(store_dir, 4)
    back_up(store_dir, tmp_path / "dest")
    work(store_dir, 1)
    made = back_up(store_dir, tmp_path / "dest", incremental=True).manifest
    value = json.loads(gzip.decompress(encode(replace(made, head=None))))
    value["format"] = 2
    for part, path in zip(value["partitions"], paths_of(store_dir), strict=True):
        pinned = PinnedPartition(path)
        part["fingerprint"] = fingerprint_until_2(pinned.description, pinned.operational)
        part["epochs"] = [
            [e.epoch, e.execution.number, e.execution.id, e.batch_id, e.closed_ms, e.clock_ms, e.live_rows]
            for e in pinned.description.epochs
        ]
        del part["unlisted"]
        pinned.release()
    (tmp_path / "dest" / manifest_name(made.id)).write_bytes(gzip.compress(json.dumps(value).encode()))
    bring_back(tmp_path / "dest", tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == states(store_dir)
    followed(tmp_path / "dest", tmp_path / "standby")
    work(store_dir, 1)
    assert back_up(store_dir, tmp_path / "dest", incremental=True).linked == len(made.copies)
    look = followed(tmp_path / "dest", tmp_path / "standby")
    assert look.problems == ()
    assert look.followed.whole_because == {}
    assert states(tmp_path / "standby") == states(store_dir)


def test_a_newer_format_is_refused_by_name(place, tmp_path):
    """What a newer format needs is unknown."""
    newest = list_backups(place).newest
    text = json.loads(gzip.decompress(encode(newest)))
    text["format"] = 4
    shutil.rmtree(place.root / "manifests")
    (place.root / "manifests").mkdir()
    (place.root / manifest_name(newest.id)).write_bytes(gzip.compress(json.dumps(text).encode()))
    with pytest.raises(NoBackupError, match="1 cannot be read"):
        bring_back(place.root, tmp_path / "new", tmp_path)
