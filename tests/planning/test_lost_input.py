"""What a run needs of its input, what is there, and what that means."""

from __future__ import annotations

import itertools

import pytest

from recovery.errors import InputLostError, InputRewrittenError
from recovery.planning.lost_input import (
    Change,
    Loss,
    Needed,
    PartKind,
    There,
    check_losses,
    left_out_text,
    loss_of,
    losses,
)

OFFSETS, FILE = PartKind.TOPIC_PARTITION, PartKind.FILE


@pytest.mark.parametrize(
    ("there", "change", "lost", "goes_on_at"),
    [
        (There(0, 40), None, None, None),
        (There(10, 30), None, None, None),
        (None, Change.REMOVED, (10, 30), None),
        (There(20, 40), Change.TRIMMED, (10, 20), 20),
        (There(40, 40), Change.TRIMMED, (10, 40), 40),
        (There(0, 20), Change.SHORTENED, (20, 30), 10),
        (There(0, 5), Change.REPLACED, (10, 30), 0),
        (There(0, 40, "other"), Change.REPLACED, (10, 30), 0),
        (There(0, 40, "same"), None, None, None),
    ],
)
def test_what_each_change_loses(there, change, lost, goes_on_at):
    """Of a part that is read from 10 on, and was read up to 30."""
    found = loss_of(Needed("orders", "0", OFFSETS, 10, 30, "same"), there)
    assert (found and found.change) is change
    if found is not None:
        assert (found.lost, found.goes_on_at) == (lost, goes_on_at)


def test_a_part_is_right_exactly_when_all_positions_are_there():
    """Compared with sets of positions, for all small cases: nothing is lost without a word, nothing refused without a
    loss, and an accepted loss leaves out nothing that is there."""
    for begin, reached, first, end in itertools.product(range(5), repeat=4):
        if reached < begin or end < first:
            continue
        loss = loss_of(Needed("s", "p", OFFSETS, begin, reached), There(first, end))
        is_there = set(range(begin, reached)) <= set(range(first, end)) and first <= begin <= end
        assert (loss is None) == is_there
        if loss is not None:
            assert loss.goes_on_at is not None
            skipped = set(range(begin, loss.goes_on_at))
            assert not skipped & set(range(first, end))
            gone = set(range(begin, reached)) - set(range(first, end))
            assert gone <= set(range(*loss.lost))


def test_an_accepted_source_does_not_accept_another():
    """The error names only sources that are not accepted, each with the option that accepts it."""
    needed = [Needed("orders", "0", OFFSETS, 10, 30), Needed("in/", "/x/in/b.txt", FILE, 0, 1)]
    lost = losses(needed, {("orders", "0"): There(25, 30)})
    with pytest.raises(InputLostError) as refused:
        check_losses(lost, ["orders"], "epochs 2 to 3")
    assert refused.value.found == (
        "1 file below in/ that was read is gone: /x/in/b.txt. Nothing was changed: the run would discard epochs 2 to "
        "3, and could not read that input as it was"
    )
    assert "--lose-input in/ (" in refused.value.remedy
    assert "orders" not in str(refused.value)
    with pytest.raises(
        InputLostError, match="topic orders, partition 0, offsets 10 to 24 are gone: it begins with offset 25 now"
    ) as refused:
        check_losses(lost, ())
    assert "--lose-input orders --lose-input in/ (lose_input=('orders', 'in/'))" in refused.value.remedy
    check_losses(lost, ["in", "orders"])


def test_the_error_is_of_the_kind_of_change():
    """Rewritten only if nothing is gone."""
    rewritten = Loss(Needed("in", "/x/a", FILE, 0, 1, "1"), Change.REPLACED, There(0, 1, "2"))
    removed = Loss(Needed("in", "/x/b", FILE, 0, 1, "1"), Change.REMOVED, None)
    with pytest.raises(InputRewrittenError, match="1 file below in that was read is changed since: /x/a"):
        check_losses([rewritten], ())
    with pytest.raises(InputLostError, match=r"/x/b.*/x/a"):
        check_losses([rewritten, removed], ())
    assert left_out_text([rewritten, removed]) == (
        "left out: 1 file below in that was read is gone: /x/b; read as it is now: 1 file below in that was read is "
        "changed since: /x/a"
    )


def test_many_parts_are_counted():
    """Five are named."""
    lost = losses([Needed("in", f"/x/{number}", FILE, 0, 1) for number in range(9)], {})
    with pytest.raises(InputLostError, match=r"9 files below in that were read are gone: /x/0, .*/x/4 and 4 more"):
        check_losses(lost, ())
    lost = losses([Needed("orders", f"{number}", OFFSETS, 0, 1) for number in range(9)], {})
    with pytest.raises(InputLostError, match="topic orders, partition 4 is gone, with offset 0; and 4 parts more"):
        check_losses(lost, ())


def test_a_name_with_spaces_is_quoted():
    """So that the printed option can be copied."""
    lost = losses([Needed("my logs/", "/x/a", FILE, 0, 1)], {})
    with pytest.raises(InputLostError, match="is gone: /x/a") as refused:
        check_losses(lost, ())
    assert "--lose-input 'my logs/'" in refused.value.remedy
