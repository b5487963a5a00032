"""Signatures that prove that a message comes from a process that shares a secret.

A signature is an HMAC over words. The words say what is signed and where it belongs: a purpose, a key, a random number
drawn for one exchange. So a signature that is copied to another place, or used again later, is invalid.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any

SECRET_VARIABLE = "AUTOSYNC_SECRET"  # noqa: S105 - the variable's name, not a secret
"""The environment variable with the secret that workers and servers of a training share."""
MIN_SECRET_CHARACTERS = 16
"""A shorter secret could be found from one signature by trying all secrets."""


def draw_secret() -> str:
    """Return a new random secret."""
    return secrets.token_hex(32)


def draw_number() -> str:
    """Return a new random number, as text, to be used once."""
    return secrets.token_hex(16)


def sign(secret: str, *words: object) -> str:
    """Return the signature of these words."""
    return hmac.new(secret.encode(), json.dumps(words).encode(), hashlib.sha256).hexdigest()


def is_signature(given: object, secret: str, *words: object) -> bool:
    """Whether `given` is the signature of these words. The time of the check reveals nothing about the right one."""
    right = sign(secret, *words)
    return isinstance(given, str) and hmac.compare_digest(right.encode(), given.encode("utf-8", "replace"))


def sign_letter(content: Mapping[str, Any], secret: str, *place: object) -> bytes:
    """Return a letter: content, with a signature of the content and of the place where the letter belongs."""
    body = json.dumps(dict(content), allow_nan=False)
    return json.dumps({"content": body, "signature": sign(secret, *place, body)}).encode()


def open_letter(letter: bytes, secret: str, *place: object) -> dict[str, Any] | None:
    """Return the content of a letter, or None unless it was signed with this secret for this place."""
    try:
        given = json.loads(letter)
        if not isinstance(given, dict) or given.keys() != {"content", "signature"}:
            return None
        body = given["content"]
        if not isinstance(body, str) or not is_signature(given["signature"], secret, *place, body):
            return None
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
