"""The shipped manifests on a small Kubernetes: a real control plane, and a stand-in kubelet whose pods are processes on
pretend hosts. Whatever fails, the state is that of a plain loop."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.support import ROOT, assert_exact, batches_in
from tests.owner.served import token_file
from tests.wire.certificates import make_certificates

pytest.importorskip("yaml", reason="moto brings it")

if TYPE_CHECKING:
    from tests.cluster.kube.cluster import Kubernetes

ROWS = 2000
"""Of a micro-batch."""
FLOW = f"counts({ROWS}, 10**9, 0.2)"


@pytest.fixture
def kubernetes(possible: None, tmp_path: Path) -> Iterator[Kubernetes]:
    """A cluster, whose image has a flow that goes on until it is ended."""
    from tests.cluster.kube import cluster, plane

    reason = plane.impossible()
    if reason:
        pytest.skip(reason)
    made = cluster.Kubernetes(tmp_path)
    try:
        made.add_image(cluster.IMAGE, FLOW)
        yield made
        assert not made.kubelet.problems
    finally:
        made.close()


def smaller(name: str, **options: str) -> list[dict]:
    """The documents of a manifest, with smaller numbers."""
    from tests.cluster.kube import cluster

    return cluster.smaller(name, **options)


def goes_on(kubernetes: Kubernetes, execution: int) -> None:
    """Wait until the driver was started again and has done two micro-batches."""
    at = kubernetes.await_text(rf"^execution {execution} resumes")
    for _ in range(2):
        at = kubernetes.await_text(r"^batch \d+$", after=at)


@pytest.mark.long
def test_a_flow_goes_on_whatever_pod_is_lost(kubernetes):
    """The API server accepts the manifests as they are shipped. An executor's pod is killed, then the driver's process,
    then the driver's pod without a grace period. At the end its pod is deleted as usual: it closes the epoch within the
    grace period."""
    for file in ("kubernetes.yaml", "kubernetes-owners.yaml", "../deploy/words.yaml"):
        kubernetes.check(file)
    kubernetes.apply(smaller("kubernetes.yaml"))
    kubernetes.await_text(r"^batch 2$")
    kubernetes.kill(kubernetes.executors()[0])
    kubernetes.wait(lambda: [each for each in kubernetes.executors() if each.name.endswith("-exec-3")], "another pod")
    done = len(kubernetes.text("words-0"))
    kubernetes.await_text(r"^batch \d+$", after=done)
    left = kubernetes.executors()
    kubernetes.kill(kubernetes.pod("words-0"))
    goes_on(kubernetes, 2)
    kubernetes.wait(lambda: all(each.codes for each in left), "the end of executors without a driver")
    kubernetes.delete("words-0", 0)
    goes_on(kubernetes, 3)
    kubernetes.scale("words", 0)
    ended = kubernetes.kubelet.ended["words-0"]
    assert (ended.code, ended.killed) == (0, False)
    assert kubernetes.plane.refused("words") == []
    assert_exact(kubernetes.disk("data-words-0") / "db", ROWS)
    # The last micro-batch is in an epoch: SIGTERM closed it.
    last = int(kubernetes.text("words-0").rpartition("\nbatch ")[2].split()[0])
    assert batches_in(kubernetes.disk("data-words-0") / "db") == last + 1
    # Executors belong to the driver's pod, and are gone with it.
    kubernetes.wait(lambda: not kubernetes.executors(), "the end of the executors")


@pytest.mark.long
def test_partitions_are_at_owners(kubernetes, tmp_path):
    """Owners with a volume each, on nodes of their own, answer their probes. One is killed, one deleted: each comes
    back with its volume, the run ends with 47, and the driver started again goes on."""
    names = tuple(f"owners-{number}.owners" for number in range(3))
    made = tmp_path / "secret"
    made.mkdir()
    certificate, key, authority = make_certificates(made, names, ())
    files = {"token": token_file(made), "tls.crt": certificate, "tls.key": key, "ca.pem": authority}
    kubernetes.add_secret("owners", files)
    kubernetes.apply(smaller("kubernetes-owners.yaml"))
    kubernetes.await_text(r"^batch 2$")
    owners = [kubernetes.pod(f"owners-{number}") for number in range(3)]
    assert len({each.pod["spec"]["nodeName"] for each in owners}) == 3
    assert all(kubernetes.is_ready(each.name) for each in owners)
    kubernetes.kill(owners[1])
    goes_on(kubernetes, 2)
    kubernetes.delete("owners-2")
    goes_on(kubernetes, 3)
    assert not kubernetes.kubelet.ended["owners-2"].killed
    # Each time that the driver is started before the owner is back.
    assert set(kubernetes.driver_codes()) == {47}
    assert len(kubernetes.driver_codes()) >= 2
    kubernetes.scale("words", 0)
    kubernetes.scale("owners", 0)
    together = tmp_path / "together"
    together.mkdir()
    for number in range(3):
        found = sorted((kubernetes.disk(f"data-owners-{number}") / "db").glob("part-*.sqlite3"))
        assert len(found) == 4
        for path in found:
            shutil.copy(path, together)
    assert_exact(together, ROWS)


@pytest.mark.long
def test_executors_with_another_image(kubernetes, tmp_path):
    """Their package has another version: the driver ends with 51, which names both."""
    other = Path(shutil.copytree(ROOT / "recovery", tmp_path / "other" / "recovery"))
    (other / "base" / "version.py").write_text('VERSION = "0.1.0"\n')
    kubernetes.add_image("registry.example/words:0", FLOW, other)
    kubernetes.apply(smaller("kubernetes.yaml", image="registry.example/words:0"))
    kubernetes.wait(lambda: kubernetes.driver_codes(), "the driver's end")
    assert kubernetes.driver_codes()[0] == 51
    assert "another version of the package recovery: 0.1.0" in kubernetes.text("words-0")


@pytest.mark.long
@pytest.mark.parametrize(
    ("resource", "said"),
    [
        ("configmaps", 'cannot create resource "configmaps"'),
        # Spark keeps the API server's reason to itself.
        ("pods", "kubectl auth can-i create pods"),
    ],
)
def test_a_role_without_a_right(kubernetes, resource, said):
    """The driver's account may not create what executors need: the driver ends with 50, and says what to look at."""
    documents = smaller("kubernetes.yaml")
    [role] = [each for each in documents if each["kind"] == "Role"]
    [rule] = role["rules"]
    rest = [each for each in rule["verbs"] if each != "create"]
    rule["resources"].remove(resource)
    role["rules"].append({"apiGroups": [""], "resources": [resource], "verbs": rest})
    kubernetes.apply(documents)
    kubernetes.wait(lambda: kubernetes.driver_codes(), "the driver's end")
    text = kubernetes.text("words-0")
    assert kubernetes.driver_codes()[0] == 50, text
    assert said in text, text
    assert "Traceback" not in text
