"""`recovery.wire.proof`: who has the key."""

from __future__ import annotations

import pytest

from recovery.wire.proof import is_proof, new_nonce, proof

KEY = bytes(32)


def test_a_proof_is_of_one_key_role_and_list_of_facts():
    """Facts that give the same text together are different ones."""
    found = proof(KEY, "task", "a", "bc")
    assert is_proof(found, KEY, "task", "a", "bc")
    for other in ((bytes([1] * 32), "task", "a", "bc"), (KEY, "owner", "a", "bc"), (KEY, "task", "ab", "c")):
        assert not is_proof(found, *other)


@pytest.mark.parametrize("text", ["", "é", "x" * 10_000])
def test_any_text_may_come_as_a_proof(text):
    assert not is_proof(text, KEY, "task")


def test_nonces_differ():
    assert len({new_nonce() for _ in range(100)}) == 100
