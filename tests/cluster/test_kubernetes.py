"""The shipped manifests on a small Kubernetes: a real control plane, and a stand-in kubelet whose pods are processes on
pretend hosts. Whatever fails, the state is that of a plain loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.support import assert_exact

pytest.importorskip("yaml", reason="moto brings it")

ROWS = 2000
"""Of a micro-batch."""
FLOW = f"counts({ROWS}, 10**9, 0.2)"


@pytest.fixture
def kubernetes(possible: None, tmp_path: Path) -> Iterator[object]:
    """A cluster, whose image has a flow that goes on until it is ended."""
    from tests.cluster.kube import plane
    from tests.cluster.kube.cluster import IMAGE, Kubernetes

    reason = plane.impossible()
    if reason:
        pytest.skip(reason)
    made = Kubernetes(tmp_path)
    try:
        made.add_image(IMAGE, FLOW)
        yield made
        assert not made.kubelet.problems
    finally:
        made.close()


@pytest.mark.long
def test_a_flow_goes_on_whatever_pod_is_lost(kubernetes):
    """An executor's pod is killed, then the driver's process, then the driver's pod without a grace period. At the end
    its pod is deleted as usual: it closes the epoch within the grace period."""
    from tests.cluster.kube.cluster import smaller

    kubernetes.apply(smaller("kubernetes.yaml"))
    at = kubernetes.await_text(r"^batch 2$")
    kubernetes.kill(kubernetes.executors()[0])
    at = kubernetes.await_text(r"^batch 6$", after=at)
    kubernetes.kill(kubernetes.pod("words-0"))
    at = kubernetes.await_text(r"^batch 8$", after=at)
    kubernetes.delete("words-0", 0)
    at = kubernetes.await_text(r"^batch 11$", after=at)
    kubernetes.scale("words", 0)
    ended = kubernetes.kubelet.ended["words-0"]
    assert (ended.code, ended.killed) == (0, False)
    assert ended.took_s < 60
    assert kubernetes.plane.refused("words") == []
    assert assert_exact(kubernetes.disk("data-words-0") / "db", ROWS) >= 12
