"""How a client and the owner prove to each other that they have the same key, without sending it: the task key, or the
token of runs and looks."""

from __future__ import annotations

import hmac
import secrets

NONCE_BYTES = 16


def new_nonce() -> str:
    """Return a random text that is used once."""
    return secrets.token_hex(NONCE_BYTES)


def proof(key: bytes, role: str, *facts: str) -> str:
    """Return the proof that the sender has the key, for its role and for facts that both sides know. The facts include
    a nonce of each side, so that no proof can be used again."""
    # With lengths, no two lists of facts give the same text.
    text = "".join(f"{len(fact)}:{fact}" for fact in (role, *facts))
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def is_proof(found: str, key: bytes, role: str, *facts: str) -> bool:
    """Whether `found` is the proof of this role and these facts. Takes the same time wherever they differ."""
    return hmac.compare_digest(found.encode(), proof(key, role, *facts).encode())


def masked(key: bytes, token: bytes, *facts: str) -> str:
    """Return 32 bytes of a key as text that only a holder of the token can read. facts: of this connection, with a
    nonce of each side, so that no mask is used twice."""
    mask = bytes.fromhex(proof(token, "mask", *facts))
    return bytes(one ^ other for one, other in zip(key, mask, strict=True)).hex()


def unmasked(text: str, token: bytes, *facts: str) -> bytes:
    """Return the key that was masked."""
    return bytes.fromhex(masked(bytes.fromhex(text), token, *facts))
