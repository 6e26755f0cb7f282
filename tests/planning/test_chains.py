"""When a backup stores a link of a chain, and how chains are merged."""

from __future__ import annotations

from dataclasses import replace

from recovery.planning.chains import FANOUT, LONGEST, ChainLink, continues, described, merged_from, outgrown
from tests.planning.test_backups import LINE, ONE, closed, copy, execution, held


def test_a_chain_of_any_length_lies_in_few_files():
    """Merged level by level: at most 28 changes files, and no link is in two or in none."""
    files: list[int] = []
    most = 0
    for link in range(1, LONGEST + 1):
        first = merged_from([*files, 1])
        files[first:] = [sum(files[first:]) + 1]
        assert sum(files) == link
        assert files == sorted(files, reverse=True)
        most = max(most, len(files))
    assert most == (FANOUT - 1) * 4 == 28


def test_a_chain_ends_when_it_is_long_or_large():
    """The next backup stores a whole copy."""
    assert outgrown(1, 100, 100) is None
    assert "large" in outgrown(1, 100, 101)
    assert "links" in outgrown(LONGEST, 100, 1)


class TestContinues:
    """The epoch from which a link leads on."""

    def test_the_newest_that_was_held_and_is_held(self):
        """Also when nothing was closed since, and when epochs were abandoned meanwhile."""
        before = description(held(1, 3), [ONE])
        assert continues(before, description(held(1, 5), [ONE])).epoch == 3
        assert continues(before, before).epoch == 3
        two = execution(2, resume_epoch=3)
        assert continues(before, description([*held(1, 2), closed(3, two)], [ONE, two])).epoch == 2
        assert continues(description([], [ONE]), description(held(1, 2), [ONE])).epoch == 0

    def test_none_from_a_backup_of_before_the_first_run(self):
        """Operational state may have been erased since, which nothing in the partition shows."""
        for now in (description([], []), description(held(1, 2), [ONE])):
            assert "no run" in continues(description([], []), now).why_not

    def test_none_if_what_was_replaced_is_not_known_any_more(self):
        """Because it was collected, because epochs are only logged, or because the file is of another timeline."""
        before = description(held(1, 3), [ONE])
        collected = continues(before, description(held(5, 6), [ONE], collected=5))
        assert collected.epoch is None
        assert "up to 5" in collected.why_not
        logged = [*held(1, 3), replace(LINE[3], logged_rows=1, logged_digest=1)]
        assert "logged" in continues(before, description(logged, [ONE])).why_not
        assert "executions" in continues(before, description(held(1, 3), [execution(1, name="other")])).why_not


def test_each_link_is_described_as_the_partition_was():
    """Epochs of earlier links stay until they are collected or abandoned; the first link has those before it."""
    two = execution(2, resume_epoch=5)
    links = [
        ChainLink(1, 2, 1, 0, (ONE,), tuple(held(1, 4))),
        ChainLink(2, 4, 3, 0, (), tuple(held(5, 6))),
        ChainLink(3, 4, 3, 0, (two,), (closed(5, two),)),
        ChainLink(4, 5, 5, 0, (), ()),
    ]
    found = described(links, description([closed(5, two)], [ONE, two], collected=5))
    assert [each.epochs for each in found] == [
        tuple(held(1, 4)), tuple(held(3, 6)), (*held(3, 4), closed(5, two)), (closed(5, two),)
    ]  # fmt: skip
    assert [each.collected for each in found] == [1, 3, 3, 5]
    assert [each.executions for each in found] == [(ONE,), (ONE,), (ONE, two), (ONE, two)]


def description(epochs, executions, collected=0):
    """A partition that says this of itself."""
    return copy(0, epochs, executions, collected=collected).description
