"""A stand-in kubelet: it starts the pods of all nodes as processes, each pod on a pretend host of its own.

It does to them what a kubelet does: volumes, init containers, the image's entry point, probes, restarts of containers,
SIGTERM and SIGKILL after the grace period, and the status by which the control plane goes on. It keeps no limits of
memory or processors, and the network has no policies.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.cluster.kube.api import Api, ApiError, place
from tests.cluster.kube.image import DIRECTORY, ENTRYPOINT, USER_ID, Image
from tests.cluster.kube.volumes import Volumes, field
from tests.namespaces import UNSHARE, family

if TYPE_CHECKING:
    from hosts import Network

NODES = ("node1", "node2", "node3")
STEP_S = 0.2
RESTART_S = 2.0
"""The pause before a container is started again; it doubles each time. A kubelet begins with 10 s."""


class Ended(NamedTuple):
    """How a pod that was deleted ended."""

    code: int
    took_s: float
    killed: bool


class Kubelet:
    """The kubelet of all nodes. images: by their names. ended: pods that were deleted, by their names."""

    def __init__(self, api: Api, network: Network, directory: Path, images: dict[str, Image]) -> None:
        directory.mkdir()
        self.api, self.network, self.images, self.directory = api, network, images, directory
        self.ended: dict[str, Ended] = {}
        self.pods: dict[str, PodRun] = {}
        self.problems: list[str] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        for name in NODES:
            self._register(name)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(STEP_S):
            try:
                self._follow()
            except (ApiError, OSError):
                continue
            except Exception:
                self.problems.append(traceback.format_exc())

    def close(self) -> None:
        """End all pods."""
        self._over.set()
        self._thread.join()
        for pod in self.pods.values():
            pod.delete(0)
        for pod in self.pods.values():
            pod.join()

    def new_host(self, setup: str) -> Any:
        """Make a pretend host with these commands."""
        from hosts import WorkerHost

        with self._lock:
            host = WorkerHost(len(self.network.hosts) + 1, self.network.driver, setup)
            self.network.hosts.append(host)
            return host

    def _register(self, name: str) -> None:
        room = {"cpu": "32", "memory": "64Gi", "pods": "110"}
        now = _now()
        ready = [{"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}]
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        }
        self.api("POST", "/api/v1/nodes", node)
        self.api.patch(f"/api/v1/nodes/{name}/status",
                       {"status": {"capacity": room, "allocatable": room, "conditions": ready}})  # fmt: skip
        # A new node has the taint that it is not ready; the controller that takes it away does not run.
        self.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": []}})

    def _follow(self) -> None:
        found = {each["metadata"]["uid"]: each for each in self.api("GET", place("Pod"))["items"]}
        for uid, pod in found.items():
            if uid not in self.pods and pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
                self.pods[uid] = PodRun(self, pod)
            if uid in self.pods and "deletionTimestamp" in pod["metadata"]:
                self.pods[uid].delete(pod["metadata"].get("deletionGracePeriodSeconds", 0))
            elif "deletionTimestamp" in pod["metadata"] and "nodeName" not in pod["spec"]:
                with contextlib.suppress(ApiError):
                    self.api("DELETE", place("Pod", pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
        for uid, run in self.pods.items():
            if uid not in found:
                run.delete(0)
        self._write_names()

    def _write_names(self) -> None:
        """Write the names that a cluster's DNS answers: those of headless services, and that of the API server."""
        lines = [f"{self.network.driver.address} kubernetes.default.svc"]
        slices = self.api("GET", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices")["items"]
        for each in slices:
            service = each["metadata"]["labels"].get("kubernetes.io/service-name")
            for endpoint in each.get("endpoints") or ():
                if endpoint["conditions"].get("ready") and "hostname" in endpoint:
                    name = f"{endpoint['hostname']}.{service}"
                    lines.append(f"{endpoint['addresses'][0]} {name} {name}.default.svc.cluster.local")
        for pod in [*self.pods.values()]:
            pod.know(lines)


class Container:
    """A container that runs. Its process is number 1 of a namespace of its own."""

    def __init__(
        self, host: Any, command: list[str], environment: dict[str, str], groups: list[int], log: Path
    ) -> None:
        user = ["setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", f"--groups={','.join(map(str, groups))}"]
        with log.open("ab") as file:
            self.process: subprocess.Popen[bytes] = host.start(
                [*UNSHARE, "env", f"--chdir={DIRECTORY}", *user, *command], environment,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip
        self.started = _now()
        self.begun_s = time.monotonic()

    def code(self) -> int | None:
        """The exit code of the container, as Kubernetes shows exit codes; None while the container runs."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def send(self, number: int) -> None:
        """Send a signal to its process 1: behind `nsenter` and `unshare`."""
        found = family(self.process.pid)
        if len(found) > 2:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found[2], number)

    def end(self, grace_s: float) -> bool:
        """Send SIGTERM, and SIGKILL after the grace period; return whether that was needed."""
        if grace_s:
            self.send(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
                return False
        self.send(signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        return True


class Probe:
    """A probe of a container: httpGet."""

    def __init__(self, described: dict[str, Any]) -> None:
        self._get = described["httpGet"]
        self._period_s = described.get("periodSeconds", 10)
        self._timeout_s = described.get("timeoutSeconds", 1)
        self._allowed = described.get("failureThreshold", 3)
        self._next_s = time.monotonic() + described.get("initialDelaySeconds", 0)
        self._failed = 0
        self.passed = False

    def ask(self, api: Api, address: str) -> bool:
        """Ask if it is time to; return whether it has failed too often."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self._period_s
            answered = api.ask(address, self._get["port"], self._get["path"], self._timeout_s)
            self._failed = 0 if answered else self._failed + 1
            self.passed = answered or (self.passed and self._failed < self._allowed)
        return self._failed >= self._allowed


class PodRun:
    """The life of one pod, which has one container beside its init containers. codes: with which that has ended so
    far."""

    def __init__(self, kubelet: Kubelet, pod: dict[str, Any]) -> None:
        self._kubelet = kubelet
        self.pod = pod
        self.name: str = pod["metadata"]["name"]
        self.codes: list[int] = []
        self.container: Container | None = None
        self._host: Any = None
        self._deleted = threading.Event()
        self._grace_s: float = 0
        self._status: dict[str, Any] = {}
        self._directory = kubelet.directory / pod["metadata"]["uid"]
        self._directory.mkdir()
        self._names = self._directory / "hosts"
        self._names.write_text("")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all of it has ended."""
        self._thread.join()

    def know(self, names: list[str]) -> None:
        """Let the pod know these names, and its own."""
        if self._host is not None:
            own = self.pod["spec"].get("hostname", self.name)
            text = "\n".join(["127.0.0.1 localhost", f"{self._host.address} {own}", *names, ""])
            if text != self._names.read_text():
                # In place: the file is mounted.
                self._names.write_text(text)

    def delete(self, grace_s: float) -> None:
        """End the pod, and give it so much time. A shorter time counts."""
        if not self._deleted.is_set() or grace_s == 0:
            self._grace_s = grace_s
            self._deleted.set()

    def _run(self) -> None:
        try:
            self._prepare()
            if self._initialized():
                self._serve()
            self._finish()
        except ApiError as error:
            # The pod is gone: it was deleted without a grace period.
            if error.code != 404:
                self._kubelet.problems.append(f"{self.name}: {error}")
        except Exception:
            self._kubelet.problems.append(f"{self.name}: {traceback.format_exc()}")
        finally:
            if self.container is not None:
                self.container.end(0)
            if self._host is not None:
                self._host.crash()

    def log(self, container: str) -> Path:
        """What a container printed, of all pods of this name."""
        return self._kubelet.directory / f"{self.name}.{container}.log"

    def _prepare(self) -> None:
        api, spec = self._kubelet.api, self.pod["spec"]
        volumes = Volumes(api, self.pod, self._directory)
        [image] = {each["image"] for each in (*spec.get("initContainers", ()), *spec["containers"])}
        self._image = self._kubelet.images[image]
        self._host = self._kubelet.new_host(self._image.root(self._names, volumes.mounts()))
        self._host.run(["hostname", spec.get("hostname", self.name)])
        self.pod["status"]["podIP"] = self._host.address
        self._tell(podIP=self._host.address, podIPs=[{"ip": self._host.address}], startTime=_now())

    def _begin(self, described: dict[str, Any]) -> Container:
        known = {"KUBERNETES_SERVICE_HOST": "kubernetes.default.svc", "KUBERNETES_SERVICE_PORT": "443"}
        environment = {**self._image.environment(), **known, "HOSTNAME": self.name}
        for each in described.get("env", ()):
            source = each.get("valueFrom", {})
            value = field(self.pod, source["fieldRef"]["fieldPath"]) if source else each.get("value", "")
            environment[each["name"]] = self._expanded(value, environment)
        command = described.get("command") or ENTRYPOINT
        words = [self._expanded(each, environment) for each in (*command, *described.get("args", ()))]
        groups = [USER_ID, *({self.pod["spec"].get("securityContext", {}).get("fsGroup", USER_ID)} - {USER_ID})]
        return Container(self._host, words, environment, groups, self.log(described["name"]))

    @staticmethod
    def _expanded(text: str, environment: dict[str, str]) -> str:
        return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)

    def _initialized(self) -> bool:
        """Run the init containers; return whether all have ended well before the pod was deleted."""
        for described in self.pod["spec"].get("initContainers", ()):
            while True:
                self.container = self._begin(described)
                while self.container.code() is None and not self._deleted.is_set():
                    time.sleep(STEP_S)
                if self._deleted.is_set():
                    self.container.end(self._grace_s)
                    return False
                if self.container.code() == 0:
                    break
                self._deleted.wait(RESTART_S)
        self.container = None
        return True

    def _serve(self) -> None:
        [described] = self.pod["spec"]["containers"]
        while not self._deleted.is_set():
            self.container = self._begin(described)
            code = self._watched(self.container, described)
            if self._deleted.is_set() or code is None:
                return
            self.codes.append(code)
            if self.pod["spec"]["restartPolicy"] == "Never":
                state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
                self._tell_container(described, state, ready=False, phase="Failed" if code else "Succeeded")
                self._deleted.wait()
                return
            self._tell_container(described, {"waiting": {"reason": "CrashLoopBackOff"}}, ready=False)
            self._deleted.wait(RESTART_S * 2 ** (len(self.codes) - 1))

    def _watched(self, container: Container, described: dict[str, Any]) -> int | None:
        """Ask the probes until the container ends; return its exit code, or None if the pod is deleted."""
        ready, alive = (
            Probe(described[name]) if name in described else None for name in ("readinessProbe", "livenessProbe")
        )
        state = {"running": {"startedAt": container.started}}
        told = None
        while container.code() is None:
            if self._deleted.is_set():
                return None
            if ready is not None:
                ready.ask(self._kubelet.api, self._host.address)
            if alive is not None and alive.ask(self._kubelet.api, self._host.address):
                container.end(self.pod["spec"]["terminationGracePeriodSeconds"])
            passed = ready is None or ready.passed
            if passed != told:
                self._tell_container(described, state, ready=passed)
                told = passed
            time.sleep(STEP_S)
        return container.code()

    def _finish(self) -> None:
        """End the container within the grace period, then let the API server forget the pod."""
        began_s = time.monotonic()
        if self.container is not None and self.container.code() is None:
            killed = self.container.end(self._grace_s)
            code = self.container.code()
            self._kubelet.ended[self.name] = Ended(code or 0, time.monotonic() - began_s, killed)
        only = {"uid": self.pod["metadata"]["uid"]}
        with contextlib.suppress(ApiError):
            self._kubelet.api("DELETE", place("Pod", self.name), {"gracePeriodSeconds": 0, "preconditions": only})

    def _tell_container(self, described: dict[str, Any], state: Any, *, ready: bool, phase: str = "Running") -> None:
        status = {"name": described["name"], "image": described["image"], "imageID": described["image"], "ready": ready,
                  "started": "running" in state, "restartCount": len(self.codes), "state": state}  # fmt: skip
        kinds = {"Initialized": True, "PodScheduled": True, "ContainersReady": ready, "Ready": ready}
        conditions = [{"type": kind, "status": str(is_so)} for kind, is_so in kinds.items()]
        self._tell(phase=phase, conditions=conditions, containerStatuses=[status])

    def _tell(self, **status: Any) -> None:
        self._status.update(status)
        self._kubelet.api.patch(f"{place('Pod', self.name)}/status", {"status": self._status})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
