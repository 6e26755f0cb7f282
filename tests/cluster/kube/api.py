"""Calls of the API server, from outside the pretend network that it is in."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NETWORK = 0x40000000
"""CLONE_NEWNET: the kind of namespace."""
_C = ctypes.CDLL(None, use_errno=True)
_CORE, _APPS = "/api/v1", "/apis/apps/v1"
_RBAC, _NETWORKING = "/apis/rbac.authorization.k8s.io/v1", "/apis/networking.k8s.io/v1"
_PLACES = {
    "ConfigMap": (_CORE, "configmaps"), "NetworkPolicy": (_NETWORKING, "networkpolicies"), "Pod": (_CORE, "pods"),
    "Role": (_RBAC, "roles"), "RoleBinding": (_RBAC, "rolebindings"), "Secret": (_CORE, "secrets"),
    "Service": (_CORE, "services"), "ServiceAccount": (_CORE, "serviceaccounts"),
    "StatefulSet": (_APPS, "statefulsets"),
}  # fmt: skip


class ApiError(Exception):
    """What the API server refused."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


@contextlib.contextmanager
def in_network_of(pid: int) -> Iterator[None]:
    """Sockets that this thread makes within the block belong to the network of a process, for as long as they live."""
    own, other = (os.open(f"/proc/{each}/ns/net", os.O_RDONLY) for each in ("thread-self", pid))
    try:
        _enter(other)
        try:
            yield
        finally:
            _enter(own)
    finally:
        os.close(own)
        os.close(other)


def _enter(namespace: int) -> None:
    if _C.setns(namespace, _NETWORK):
        raise OSError(ctypes.get_errno(), "a network cannot be entered")


class Api:
    """The API server as an administrator calls it."""

    def __init__(self, pid: int, address: str, token: str, authority: Path) -> None:
        """pid: a process of the network. authority: a PEM file of who signed the server's certificate."""
        self._pid = pid
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}"}
        self._tls = ssl.create_default_context(cafile=str(authority))

    def __call__(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Call; return the answer. Raises ApiError, and OSError if the server is not reached."""
        connection = http.client.HTTPSConnection(self._address, 443, timeout=30, context=self._tls)
        with contextlib.closing(connection):
            with in_network_of(self._pid):
                connection.connect()
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {**self._headers, "Content-Type": kind})
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status >= 400:
            raise ApiError(answer.status, text)
        return json.loads(text) if text.startswith("{") else text

    def create(self, document: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create what a document of a manifest describes. Fields that there are not, or twice, are refused."""
        found: dict[str, Any] = self(
            "POST", f"{place(document['kind'])}?fieldValidation=Strict{'&dryRun=All' if dry_run else ''}", document
        )
        return found

    def patch(self, path: str, change: Any) -> None:
        """Change some fields of an object."""
        self("PATCH", path, change, "application/merge-patch+json")

    def ask(self, address: str, port: int, path: str, timeout_s: float) -> bool:
        """Whether an HTTP server in the network answers without an error, as a probe asks."""
        connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
        try:
            with contextlib.closing(connection):
                with in_network_of(self._pid):
                    connection.connect()
                connection.request("GET", path)
                return 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False


def place(kind: str, name: str = "", namespace: str = "default") -> str:
    """The path of an object, or of all objects of a kind in a namespace."""
    group, plural = _PLACES[kind]
    return f"{group}/namespaces/{namespace}/{plural}{f'/{name}' if name else ''}"
