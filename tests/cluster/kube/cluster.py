"""A cluster for tests: the shipped manifests go in, with smaller numbers, and its pods run."""

from __future__ import annotations

import base64
import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.kube.api import ApiError, place
from tests.cluster.kube.image import Image
from tests.cluster.kube.kubelet import Kubelet, PodRun
from tests.cluster.kube.plane import ControlPlane
from tests.cluster.support import EXAMPLES, FLOWS, IMPATIENT, ROOT, SMALL, installed
from tests.namespaces import family, signal_all

PATIENCE_S = 400.0
"""On two cores that others use too, a driver and its executors take minutes to start."""
MOST_RESTARTS = 8
IMAGE = "registry.example/words:1"
SMALLER = {
    "spark.executor.instances=4": "spark.executor.instances=2",
    "spark.executor.cores=4": "spark.executor.cores=1",
    "value: 10s": "value: 1s",
}
"""What tests change in the manifests, for a machine of two cores. They also add settings of Spark, for its memory and
its patience."""


def smaller(name: str, *, image: str = IMAGE) -> list[dict[str, Any]]:
    """The documents of a manifest, with smaller numbers. image: that of the executors."""
    text = (EXAMPLES / name).read_text()
    for large, small in {**SMALLER, f"container.image={IMAGE}": f"container.image={image}"}.items():
        assert large in text, large
        text = text.replace(large, small)
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        for container in (
            document["spec"]["template"]["spec"]["containers"] if document["kind"] == "StatefulSet" else ()
        ):
            if container["name"] == "driver":
                container["args"] += [f"--conf={each}" for each in (*SMALL, *IMPATIENT)]
    return documents


class Kubernetes:
    """A cluster of three nodes that share no disk."""

    def __init__(self, directory: Path) -> None:
        from hosts import Network

        self._directory = directory
        self.images: dict[str, Image] = {}
        self.network = Network(hidden=[ROOT, *installed()])
        try:
            self.plane = ControlPlane(self.network, directory / "plane")
            self.api = self.plane.api
            self.kubelet = Kubelet(self.api, self.network, directory / "pods", self.images)
        except BaseException:
            self.network.close()
            raise
        self._disks = 0

    def add_image(self, name: str, flow: str, package: Path = ROOT / "recovery") -> None:
        """Add an image with a flow. flow: an expression of tests/flows/cluster.py."""
        app = self._directory / name.replace("/", "-").replace(":", "-")
        app.mkdir()
        shutil.copy(FLOWS / "cluster.py", app / "flow.py")
        with (app / "flow.py").open("a") as file:
            file.write(f"\n\nflow = {flow}\n")
        self.images[name] = Image(package, app)

    def check(self, file: str) -> None:
        """Let the API server check a manifest as it is shipped, and create nothing. Raises ApiError."""
        for document in yaml.safe_load_all((EXAMPLES / file).read_text()):
            self.api.create(document, dry_run=True)

    def apply(self, documents: Iterable[dict[str, Any]]) -> None:
        """Create what documents describe, and the disks that they claim."""
        for document in documents:
            if document["kind"] == "StatefulSet":
                for _ in range(document["spec"]["replicas"]):
                    self._add_disk()
            self.api.create(document)

    def add_secret(self, name: str, files: dict[str, Path]) -> None:
        """Create a secret with these files, as `kubectl create secret generic --from-file` does."""
        data = {key: base64.b64encode(path.read_bytes()).decode() for key, path in files.items()}
        self.api.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data})

    def disk(self, claim: str) -> Path:
        """The directory of a claim's volume."""
        found = self.api("GET", f"/api/v1/namespaces/default/persistentvolumeclaims/{claim}")
        return self._directory / found["spec"]["volumeName"]

    def pod(self, name: str) -> PodRun:
        """The newest pod of this name that runs, or has run."""
        return [each for each in self.kubelet.pods.values() if each.name == name][-1]

    def executors(self) -> list[PodRun]:
        """The executors' pods that the API server knows."""
        known = self.api("GET", f"{place('Pod')}?labelSelector=executor-of%3Dwords")["items"]
        return [self.kubelet.pods[uid] for each in known if (uid := each["metadata"]["uid"]) in self.kubelet.pods]

    def driver_codes(self) -> list[int]:
        """The exit codes of the driver so far."""
        found = [each.codes for each in [*self.kubelet.pods.values()] if each.name == "words-0"]
        return found[-1] if found else []

    def text(self, pod: str, container: str = "driver") -> str:
        """What a container has printed, of all pods of this name."""
        path = self.kubelet.directory / f"{pod}.{container}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def await_text(self, pattern: str, pod: str = "words-0", after: int = 0) -> int:
        """Wait until a driver has printed this, behind so many characters; return where it ends."""
        self.wait(lambda: re.search(pattern, self.text(pod)[after:], re.MULTILINE), f"{pattern!r} in {pod}", after)
        found = re.search(pattern, self.text(pod)[after:], re.MULTILINE)
        assert found is not None
        return after + found.end()

    def wait(self, condition: Callable[[], Any], what: str, after: int = 0) -> None:
        """Wait until a condition is true."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert not self.kubelet.problems, "\n".join(self.kubelet.problems)
            assert all(len(each.codes) < MOST_RESTARTS for each in [*self.kubelet.pods.values()]), self.text("words-0")[
                -3000:
            ]
            assert time.monotonic() < deadline_s, f"{what} never came\n{self.state()}\n{self.text('words-0')[after:]}"
            time.sleep(0.1)

    def state(self) -> str:
        """The pods, and what the control plane says of them, for the message of a failure."""
        lines = [f"{each['metadata']['name']} {each['status']}" for each in self.api("GET", place("Pod"))["items"]]
        for each in self.api("GET", "/api/v1/namespaces/default/events")["items"]:
            lines.append(f"{each['involvedObject'].get('name')}: {each.get('message')}")
        for path in sorted(self.kubelet.directory.glob("*exec-*.log"))[:2]:
            lines.append(f"{path.name}: {path.read_text(errors='replace')[-1500:]}")
        return "\n".join(lines)

    def kill(self, pod: PodRun) -> None:
        """Kill all processes of a pod's container, as the kernel does when memory ends."""
        assert pod.container is not None
        signal_all(family(pod.container.process.pid)[2:], 9)

    def is_ready(self, pod: str) -> bool:
        """Whether its readiness probe was answered."""
        found = self.api("GET", place("Pod", pod))["status"].get("conditions", ())
        return any((each["type"], each["status"]) == ("Ready", "True") for each in found)

    def delete(self, pod: str, grace_s: int | None = None) -> None:
        """Delete a pod as `kubectl delete pod` does; grace_s 0: with --force."""
        self.api("DELETE", place("Pod", pod), None if grace_s is None else {"gracePeriodSeconds": grace_s})

    def scale(self, name: str, replicas: int) -> None:
        """Set the number of pods of a set; wait until those beyond it have ended."""
        self.api.patch(place("StatefulSet", name), {"spec": {"replicas": replicas}})
        for number in range(replicas, 9):
            self.wait(lambda pod=f"{name}-{number}": self._is_gone(pod), f"the end of {name}-{number}")

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(ApiError, OSError):
            self.kubelet.close()
        self.plane.stop()
        self.network.close()

    def _is_gone(self, pod: str) -> bool:
        try:
            self.api("GET", place("Pod", pod))
        except ApiError as error:
            return error.code == 404
        return False

    def _add_disk(self) -> None:
        name = f"disk-{self._disks}"
        self._disks += 1
        (self._directory / name).mkdir()
        spec = {"capacity": {"storage": "20Gi"}, "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": str(self._directory / name)}}  # fmt: skip
        disk = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        self.api("POST", "/api/v1/persistentvolumes", disk)
