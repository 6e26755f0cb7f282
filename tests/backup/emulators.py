"""Real servers that speak the protocols of S3, Google Cloud Storage and Azure, one process each."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.fs
import pytest

BUCKET = "backups"
S = TypeVar("S")
# The account of Azurite and its key are public: they are in its documentation, the same for everybody.
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass
class Emulator:
    """A running server: addresses below its bucket, the environment they need, and a plain file system on it."""

    kind: str
    process: subprocess.Popen
    host: str
    """The host and port of the server."""
    address: str
    parameters: str
    filesystem: pyarrow.fs.FileSystem
    environ: dict[str, str] = field(default_factory=dict)

    def place(self, prefix: str) -> str:
        """The address of a prefix in the bucket."""
        return f"{self.address}/{prefix}?{self.parameters}"


class Servers(contextlib.ExitStack):
    """The servers of all tests that leave them running: one of each kind, from the first test that asks on. Each test
    has prefixes or buckets of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[Callable[[], contextlib.AbstractContextManager], Any] = {}

    def of(self, start: Callable[[], contextlib.AbstractContextManager[S]]) -> S:
        """The server that `start` starts: `moto`, `gcp`, `azurite` or a function like these."""
        if start not in self._running:
            self._running[start] = self.enter_context(start())
        return self._running[start]


@contextlib.contextmanager
def running(command: list[str], port: int, **options: object) -> Iterator[subprocess.Popen]:
    """A server in a process of its own, once it listens."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{command[0]} does not listen"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


MOTO = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple
# Werkzeug answers "Expect: 100-continue", and so does the class that it inherits from. The AWS SDK's asynchronous
# client, by which S3A copies local files, takes the second answer for that of the request, and the copy fails.
WSGIRequestHandler.handle_expect_100 = lambda self: True
# moto checks a condition and writes in two steps: of two requests that meet there, both would succeed.
one_by_one, served = threading.Lock(), DomainDispatcherApplication(create_backend_app)
def application(environ, start):
    with one_by_one:
        return served(environ, start)
run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)
"""


@contextlib.contextmanager
def moto() -> Iterator[Emulator]:
    """S3, by moto."""
    pytest.importorskip("moto.server", reason="moto is not installed (the test extra has it)")
    port = free_port()
    environ = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "not-a-real-secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with running([sys.executable, "-c", MOTO, str(port)], port) as process:
        filesystem = pyarrow.fs.S3FileSystem(
            access_key="key", secret_key="not-a-real-secret", endpoint_override=f"127.0.0.1:{port}", scheme="http",
            region="us-east-1", allow_bucket_creation=True,
        )  # fmt: skip
        filesystem.create_dir(BUCKET)
        host = f"127.0.0.1:{port}"
        parameters = f"endpoint_override={host}&scheme=http&region=us-east-1"
        yield Emulator("s3", process, host, f"s3://{BUCKET}", parameters, filesystem, environ)


@contextlib.contextmanager
def gcp() -> Iterator[Emulator]:
    """Google Cloud Storage, by gcp-storage-emulator."""
    command = shutil.which(
        "gcp-storage-emulator", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if command is None:
        pytest.skip("gcp-storage-emulator is not installed (the test extra has it)")
    port = free_port()
    start = [command, "start", f"--port={port}", "--host=127.0.0.1", "--in-memory", f"--default-bucket={BUCKET}"]
    with running(start, port) as process:
        filesystem = pyarrow.fs.GcsFileSystem(anonymous=True, endpoint_override=f"127.0.0.1:{port}", scheme="http")
        host = f"127.0.0.1:{port}"
        parameters = f"endpoint_override={host}&scheme=http"
        yield Emulator("gs", process, host, f"gs://anonymous@{BUCKET}", parameters, filesystem)


@contextlib.contextmanager
def azurite() -> Iterator[Emulator]:
    """Azure, by Azurite, which npm installs; RECOVERY_TEST_AZURITE or PATH says where `azurite-blob` is."""
    command = os.environ.get("RECOVERY_TEST_AZURITE") or shutil.which("azurite-blob")
    if command is None:
        pytest.skip("azurite-blob is not on PATH: npm install -g azurite@3.35")
    port = free_port()
    start = [command, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent", "--skipApiVersionCheck"]
    with tempfile.TemporaryDirectory() as files, running([*start, "--location", files], port) as process:
        filesystem = pyarrow.fs.AzureFileSystem(
            account_name=AZURITE_ACCOUNT, account_key=AZURITE_KEY,
            blob_storage_authority=f"127.0.0.1:{port}", blob_storage_scheme="http",
            dfs_storage_authority=f"127.0.0.1:{port}", dfs_storage_scheme="http",
        )  # fmt: skip
        filesystem.create_dir(BUCKET)
        host = f"127.0.0.1:{port}"
        parameters = f"blob_storage_authority={host}&dfs_storage_authority={host}&enable_tls=false"
        environ = {"AZURE_STORAGE_KEY": AZURITE_KEY}
        yield Emulator("abfs", process, host, f"abfs://{AZURITE_ACCOUNT}@{BUCKET}", parameters, filesystem, environ)


def script(name: str) -> str | None:
    """A program that came with a package of this environment, or is on PATH."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
