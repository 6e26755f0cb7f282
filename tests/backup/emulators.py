"""Real servers that speak the protocols of S3, Google Cloud Storage and Azure, one process each."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.fs
import pytest

BUCKET = "backups"
# The account of Azurite and its key are public: they are in its documentation, the same for everybody.
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass
class Emulator:
    """A running server: addresses below its bucket, the environment they need, and a plain file system on it."""

    kind: str
    process: subprocess.Popen
    address: str
    parameters: str
    filesystem: pyarrow.fs.FileSystem
    environ: dict[str, str] = field(default_factory=dict)

    def place(self, prefix: str) -> str:
        """The address of a prefix in the bucket."""
        return f"{self.address}/{prefix}?{self.parameters}"


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
import sys
from moto.server import main
from werkzeug.serving import WSGIRequestHandler
# Werkzeug answers "Expect: 100-continue", and so does the class that it inherits from. The AWS SDK's asynchronous
# client, by which S3A copies local files, takes the second answer for that of the request, and the copy fails.
WSGIRequestHandler.handle_expect_100 = lambda self: True
main(sys.argv[1:])
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
    with running([sys.executable, "-c", MOTO, "-p", str(port)], port) as process:
        filesystem = pyarrow.fs.S3FileSystem(
            access_key="key", secret_key="not-a-real-secret", endpoint_override=f"127.0.0.1:{port}", scheme="http",
            region="us-east-1", allow_bucket_creation=True,
        )  # fmt: skip
        filesystem.create_dir(BUCKET)
        parameters = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        yield Emulator("s3", process, f"s3://{BUCKET}", parameters, filesystem, environ)


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
        parameters = f"endpoint_override=127.0.0.1:{port}&scheme=http"
        yield Emulator("gs", process, f"gs://anonymous@{BUCKET}", parameters, filesystem)


@contextlib.contextmanager
def azurite(directory: Path) -> Iterator[Emulator]:
    """Azure, by Azurite, which npm installs; RECOVERY_TEST_AZURITE or PATH says where `azurite-blob` is."""
    command = os.environ.get("RECOVERY_TEST_AZURITE") or shutil.which("azurite-blob")
    if command is None:
        pytest.skip("azurite-blob is not on PATH: npm install -g azurite@3.35")
    port = free_port()
    start = [command, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent", "--skipApiVersionCheck"]
    with running([*start, "--location", str(directory)], port) as process:
        filesystem = pyarrow.fs.AzureFileSystem(
            account_name=AZURITE_ACCOUNT, account_key=AZURITE_KEY,
            blob_storage_authority=f"127.0.0.1:{port}", blob_storage_scheme="http",
            dfs_storage_authority=f"127.0.0.1:{port}", dfs_storage_scheme="http",
        )  # fmt: skip
        filesystem.create_dir(BUCKET)
        authority = f"127.0.0.1:{port}"
        parameters = f"blob_storage_authority={authority}&dfs_storage_authority={authority}&enable_tls=false"
        environ = {"AZURE_STORAGE_KEY": AZURITE_KEY}
        yield Emulator("abfs", process, f"abfs://{AZURITE_ACCOUNT}@{BUCKET}", parameters, filesystem, environ)


def script(name: str) -> str | None:
    """A program that came with a package of this environment, or is on PATH."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
