"""Buckets of moto that keep older versions of objects, or lock them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tests.backup.emulators import BUCKET, Emulator


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, and AWS's own client of it."""

    server: Emulator
    name: str
    client: Any

    def place(self, prefix: str) -> str:
        """The address of a prefix in the bucket."""
        return self.server.place(prefix).replace(f"//{BUCKET}/", f"//{self.name}/")

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """The name and the unpacked bytes of every version of every object."""
        pages = self.client.get_paginator("list_object_versions").paginate(Bucket=self.name)
        for each in (each for page in pages for each in page.get("Versions", [])):
            found = self.client.get_object(Bucket=self.name, Key=each["Key"], VersionId=each["VersionId"])
            data = found["Body"].read()
            if each["Key"].endswith(".zst"):
                data = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
            yield f"{each['Key']}?{each['VersionId']}", data

    def traces(self, *words: str) -> list[str]:
        """The versions that hold one of these words."""
        return [name for name, data in self.contents() if any(word.encode() in data for word in words)]

    def hold(self, name: str, version: str) -> None:
        """Put a legal hold on a version."""
        self.client.put_object_legal_hold(
            Bucket=self.name, Key=name, VersionId=version, LegalHold={"Status": "ON"}
        )  # fmt: skip

    def lock(self, *, days: int, mode: str) -> None:
        """Lock every version of every object, which moto by itself does for small objects only."""
        until = datetime.now(UTC) + timedelta(days=days)
        for name, _ in list(self.contents()):
            key, _, version = name.partition("?")
            self.client.put_object_retention(
                Bucket=self.name, Key=key, VersionId=version, Retention={"Mode": mode, "RetainUntilDate": until}
            )

    def unlock(self, name: str, version: str) -> None:
        """Let the lock of a version end, as time does."""
        ended = {"Mode": "GOVERNANCE", "RetainUntilDate": datetime.now(UTC) - timedelta(seconds=1)}
        self.client.put_object_retention(
            Bucket=self.name, Key=name, VersionId=version, BypassGovernanceRetention=True, Retention=ended
        )


def versioned_bucket(server: Emulator, name: str) -> Bucket:
    """A bucket that keeps what is removed or replaced."""
    made = _made(server, name)
    made.client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return made


def locked_bucket(server: Emulator, name: str, *, days: int, mode: str = "COMPLIANCE") -> Bucket:
    """A bucket with object lock, by default for so many days."""
    made = _made(server, name, ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": mode, "Days": days}}
    made.client.put_object_lock_configuration(
        Bucket=name, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
    )
    return made


def _made(server: Emulator, name: str, **options: Any) -> Bucket:
    client = _client(server.host)
    client.create_bucket(Bucket=name, **options)
    return Bucket(server, name, client)


@functools.cache
def _client(host: str) -> Any:
    boto3 = pytest.importorskip("boto3", reason="boto3, which comes with moto, is not installed")
    return boto3.client(
        "s3", endpoint_url=f"http://{host}", region_name="us-east-1", aws_access_key_id="key",
        aws_secret_access_key="not-a-real-secret",
    )  # fmt: skip
