"""The volumes of a pod, as directories of this machine."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from tests.cluster.kube.api import Api, place


class Volumes:
    """The volumes of one pod. mounts: source, path in the container, whether it is read-only."""

    def __init__(self, api: Api, pod: dict[str, Any], directory: Path) -> None:
        self._api = api
        self._pod = pod
        self._directory = directory
        self._group = pod["spec"].get("securityContext", {}).get("fsGroup", 0)
        self._made = {each["name"]: self._make(each) for each in pod["spec"].get("volumes", ())}

    def mounts(self) -> list[tuple[Path, str, bool]]:
        """The volumes that the containers of the pod mount, all at the same paths."""
        found = {}
        for container in (*self._pod["spec"].get("initContainers", ()), *self._pod["spec"]["containers"]):
            for each in container.get("volumeMounts", ()):
                found[each["mountPath"]] = (self._made[each["name"]], each.get("readOnly", False))
        return [(source, path, readonly) for path, (source, readonly) in sorted(found.items())]

    def _make(self, volume: dict[str, Any]) -> Path:
        if "persistentVolumeClaim" in volume:
            claim = f"/api/v1/namespaces/default/persistentvolumeclaims/{volume['persistentVolumeClaim']['claimName']}"
            disk = self._api("GET", f"/api/v1/persistentvolumes/{self._api('GET', claim)['spec']['volumeName']}")
            return self._writable(Path(disk["spec"]["hostPath"]["path"]))
        directory = self._directory / volume["name"]
        directory.mkdir(parents=True)
        if "emptyDir" in volume:
            return self._writable(directory, 0o2777)
        for source in volume.get("projected", {}).get("sources") or [volume]:
            for name, content in self._files(source).items():
                self._write(directory / name, content, volume)
        return directory

    def _writable(self, directory: Path, mode: int = 0o2775) -> Path:
        """As kubelets leave a volume: for the pod's group."""
        os.chown(directory, -1, self._group)
        directory.chmod(mode)
        return directory

    def _write(self, path: Path, content: bytes, volume: dict[str, Any]) -> None:
        mode = next((each["defaultMode"] for each in volume.values() if isinstance(each, dict)), 0o644)
        path.write_bytes(content)
        os.chown(path, 0, self._group)
        path.chmod(mode | 0o040 if self._group else mode)

    def _files(self, source: dict[str, Any]) -> dict[str, bytes]:
        """The files of a secret, of a map, of the pod's fields, or of the account's token."""
        [(kind, what)] = [each for each in source.items() if each[0] != "name"]
        if kind == "serviceAccountToken":
            return {what["path"]: self._token(what["expirationSeconds"])}
        if kind == "downwardAPI":
            return {each["path"]: str(field(self._pod, each["fieldRef"]["fieldPath"])).encode()
                    for each in what["items"]}  # fmt: skip
        if kind == "secret":
            held = self._api("GET", place("Secret", what.get("secretName") or what["name"])).get("data", {})
            values = {name: base64.b64decode(text) for name, text in held.items()}
        else:
            held = self._api("GET", place("ConfigMap", what["name"])).get("data", {})
            values = {name: text.encode() for name, text in held.items()}
        items = what.get("items") or [{"key": name, "path": name} for name in values]
        return {each["path"]: values[each["key"]] for each in items}

    def _token(self, seconds: int) -> bytes:
        metadata = self._pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        account = place("ServiceAccount", self._pod["spec"]["serviceAccountName"])
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                   "spec": {"expirationSeconds": seconds, "boundObjectRef": bound}}  # fmt: skip
        token: str = self._api("POST", f"{account}/token", request)["status"]["token"]
        return token.encode()


def field(pod: dict[str, Any], path: str) -> Any:
    """A field of a pod by its path, such as status.podIP."""
    found = pod
    for each in path.split("."):
        found = found[each]
    return found
