"""Errors of disks, of services and of Hadoop's file systems as errors of the caller's class, without secrets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from recovery.errors import RecoveryError
from recovery.places.arrow import or_arrow_error
from recovery.places.secrets import Secrets


@dataclass(frozen=True, slots=True)
class Failures:
    """How failures of one place are reported. kind: the error's class. shown: the place, as messages name it.
    looked_at: a sentence that says where credentials were looked for."""

    kind: type[RecoveryError]
    shown: str
    secrets: Secrets = field(default_factory=Secrets)
    looked_at: str = ""

    @contextlib.contextmanager
    def of_disk(self, *passed: type[OSError]) -> Iterator[None]:
        """Raise errors of the operating system as errors of the place; errors in `passed` stay as they are."""
        try:
            yield
        except passed:
            raise
        except or_arrow_error(OSError) as error:
            cause = "The disk is full or failing, or this user may not write there."
            raise self.kind(str(error), path=self.shown, cause=cause) from error

    @contextlib.contextmanager
    def of_hadoop(self, *passed: type[OSError]) -> Iterator[None]:
        """Translate the errors of one of Hadoop's file systems."""
        try:
            yield
        except passed:
            raise
        except OSError as error:
            raise self.kind(
                self.secrets.scrubbed(error.strerror or error),
                path=self.shown,
                cause="The address is wrong, the service is down, or Spark lacks its library or credentials for it.",
                remedy="Check the address. Libraries are settings of Spark, as in --conf spark.jars.packages=…; so are "
                "credentials, as spark.hadoop.fs.s3a.access.key, which belong in a --properties-file.",
            ) from (None if self.secrets else error)

    def of_service(self, error: Exception) -> RecoveryError:
        """Return the error for what the client of a service raised."""
        return self.kind(
            self.secrets.scrubbed(error), path=self.shown, cause=f"{self.kind.default_cause} {self.looked_at}".rstrip()
        )

    def silent(self, limit_s: float) -> RecoveryError:
        """Return the error for a service that has not answered for this long."""
        return self.kind(
            f"no answer for {limit_s:.0f} s",
            path=self.shown,
            cause=f"The service cannot be reached. {self.looked_at}".rstrip(),
        )
