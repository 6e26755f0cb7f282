"""How a task and the owner prove to each other that they have the task key, without sending it."""

from __future__ import annotations

import hmac
import secrets

NONCE_BYTES = 16


def new_nonce() -> str:
    """Return a random text that is used once."""
    return secrets.token_hex(NONCE_BYTES)


def proof(key: bytes, role: str, *facts: str) -> str:
    """Return the proof of who has the key, in this role, over facts that both sides know: among them a nonce of each,
    so that no proof can be used again."""
    # With lengths, no two lists of facts give the same text.
    text = "".join(f"{len(fact)}:{fact}" for fact in (role, *facts))
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def is_proof(found: str, key: bytes, role: str, *facts: str) -> bool:
    """Whether `found` is the proof of this role and these facts. Takes the same time wherever they differ."""
    return hmac.compare_digest(found.encode(), proof(key, role, *facts).encode())
