"""The control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, as `.ci/run` builds them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.kube.api import Api, ApiError
from tests.wire.certificates import make_certificates

if TYPE_CHECKING:
    from hosts import Network

PROGRAM = Path(os.environ.get("RECOVERY_TEST_KUBE", Path(__file__).parents[3] / ".ci" / "kube-bin" / "kube"))
"""One program with the three parts of Kubernetes."""
CLUSTER_ADDRESS = "10.96.0.1"
"""Of the service `kubernetes`, through which pods reach the API server."""
PATIENCE_S = 240.0
_ADMIN = "administrator-of-the-tests"
_CONTROLLERS = (
    "endpointslice-controller", "garbage-collector-controller", "persistentvolume-binder-controller",
    "root-ca-certificate-publisher-controller", "serviceaccount-controller", "statefulset-controller",
)  # fmt: skip
"""The controllers that pods of the manifests need. No controller watches nodes: their kubelet is a stand-in."""


def impossible() -> str:
    """Why no control plane can run here; empty if it can."""
    if not PROGRAM.exists():
        return f"no Kubernetes was built: {PROGRAM} is missing (.ci/kube/build makes it, with Go 1.24 or newer)"
    if shutil.which("etcd") is None:
        return "Kubernetes needs etcd (package etcd-server)"
    return ""


class ControlPlane:
    """A control plane on the driver's host of a network. api: called as its administrator."""

    def __init__(self, network: Network, directory: Path) -> None:
        directory.mkdir()
        self._host = network.driver
        self._directory = directory
        self._processes: list[subprocess.Popen[Any]] = []
        names, addresses = ("kubernetes.default.svc", "kubernetes"), (self._host.address, CLUSTER_ADDRESS)
        self.certificate, self._key, self.authority = make_certificates(directory, names, addresses)
        self.api = Api(self._host.pid, self._host.address, _ADMIN, self.authority)
        self._host.run(["ip", "addr", "add", f"{CLUSTER_ADDRESS}/32", "dev", "lo"])
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def refused(self, account: str) -> list[str]:
        """The requests of a service account that its rights did not allow."""
        found = []
        for line in (self._directory / "audit.log").read_text().splitlines():
            event = json.loads(line)
            refused = event.get("responseStatus", {}).get("code") == 403
            if refused and event["user"]["username"] == f"system:serviceaccount:default:{account}":
                found.append(f"{event['verb']} {event['requestURI']}")
        return found

    def stop(self) -> None:
        """End all of it."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _start(self) -> None:
        self._run("etcd", ["etcd", "--data-dir", self._directory / "etcd", "--unsafe-no-fsync"])
        (self._directory / "tokens.csv").write_text(f"{_ADMIN},admin,1,system:masters\n")
        (self._directory / "audit.yaml").write_text(
            json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]})
        )
        self._part(
            "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={self.certificate}",
            f"--service-account-signing-key-file={self._key}", "--service-cluster-ip-range=10.96.0.0/24",
            f"--tls-cert-file={self.certificate}", f"--tls-private-key-file={self._key}", "--bind-address=0.0.0.0",
            "--secure-port=443", f"--advertise-address={self._host.address}",
            f"--token-auth-file={self._directory}/tokens.csv", f"--audit-policy-file={self._directory}/audit.yaml",
            f"--audit-log-path={self._directory}/audit.log", f"--cert-dir={self._directory}",
        )  # fmt: skip
        self._await("kube-apiserver", lambda: self.api("GET", "/readyz") == "ok")
        config = self._directory / "kubeconfig"
        server = {"server": f"https://{self._host.address}", "certificate-authority": str(self.authority)}
        config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": server}], "users": [{"name": "it", "user": {"token": _ADMIN}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }))  # fmt: skip
        client = (f"--kubeconfig={config}", "--leader-elect=false", "--bind-address=127.0.0.1")
        self._part(
            "kube-controller-manager", *client, f"--service-account-private-key-file={self._key}",
            f"--root-ca-file={self.authority}", f"--controllers={','.join(_CONTROLLERS)}",
        )  # fmt: skip
        self._part("kube-scheduler", *client)
        ready = "/api/v1/namespaces/default/serviceaccounts/default"
        self._await("kube-controller-manager", lambda: bool(self.api("GET", ready)))

    def _part(self, name: str, *options: str) -> None:
        self._run(name, [PROGRAM, name, *options])

    def _run(self, name: str, command: list[Any]) -> None:
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes.append(self._host.start(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _await(self, part: str, condition: Any) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(ApiError, OSError):
                if condition():
                    return
            log = self._directory / f"{part}.log"
            ended = [each.args for each in self._processes if each.poll() is not None]
            assert not ended, f"{ended}\n{log.read_text()[-3000:]}"
            assert time.monotonic() < deadline_s, f"{part} is not ready:\n{log.read_text()[-3000:]}"
            time.sleep(0.2)
