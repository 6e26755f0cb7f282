"""Pictures of the pages."""

from __future__ import annotations

import pytest

from recovery.planning.health import findings, parse_targets
from recovery.ui.pages.drawing import health_meter


@pytest.mark.parametrize(("lag_s", "is_drawn"), [(0.0, True), (7200.0, True), (None, False), (-3600.0, False)])
def test_the_bar_of_a_target(lag_s, is_drawn):
    """An age that is not known has none: a short bar would be that of a young backup."""
    found = findings([], parse_targets({"backup-lag": "2h/1d"}), state_bytes=None, backup_lag_s=lag_s)
    [lag] = [each.as_json() for each in found if each.target.name == "backup-lag"]
    assert ("<svg" in health_meter(lag)) is is_drawn
