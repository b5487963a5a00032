"""Estimates the width of text and clips it to fit: a picture's layout cannot know the reader's fonts."""

from __future__ import annotations

import unicodedata

_NARROW = frozenset("fijlrtI.,:;|!'`()[]/ -")
_WIDE = frozenset("mwMWQO@%&")
_LONGEST = 200


def text_width(text: str, size: float = 12.0) -> float:
    """Return the width of a text in pixels in an ordinary sans-serif font, rather too large than too small."""
    return size * sum(map(_em, text))


def clipped(text: str, width: float, size: float = 12.0) -> str:
    """Return the text, shortened in the middle if it does not fit; empty if nothing fits.

    Both ends are kept, because names of variables differ at their ends.
    """
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}…{text[-(_LONGEST // 2) :]}"
    if text_width(text, size) <= width:
        return text
    for kept in range(len(text) - 1, 1, -1):
        tail = kept // 2
        candidate = f"{text[: kept - tail].rstrip()}…{text[len(text) - tail :].lstrip()}"
        if text_width(candidate, size) <= width:
            return candidate
    return ""


def _em(character: str) -> float:
    if character in _NARROW:
        return 0.36
    if character in _WIDE:
        return 0.92
    if unicodedata.east_asian_width(character) in "WF":
        return 1.05
    return 0.7 if character.isupper() else 0.58
