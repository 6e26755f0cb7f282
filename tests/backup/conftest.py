"""What tests of backups share."""

from __future__ import annotations

import pytest

from tests.backup import emulators
from tests.backup.emulators import Emulator


@pytest.fixture
def reached(servers, monkeypatch) -> Emulator:
    """moto's server, with credentials in the environment."""
    s3 = servers.of(emulators.moto)
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    return s3
