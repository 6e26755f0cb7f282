"""What is asked of things that others own: each class that stands for one answers every question."""

from __future__ import annotations

import pytest

from recovery.base.outside import CannotTell, Checked, DoesNotApply, Question

OUTSIDES: list[type] = []
"""Every class that stands for an input, a target of a sink, or a place of copies."""


@pytest.mark.parametrize("outside", OUTSIDES)
def test_each_class_answers_every_question(outside):
    assert set(outside.answers) == set(Question)
    for answer in outside.answers.values():
        assert isinstance(answer, Checked | CannotTell | DoesNotApply)
        assert not isinstance(answer, Checked) or answer.at
