"""Reads the events of a Chrome trace one by one, so that a trace of hours is never in memory as a whole."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

MAX_CHARACTERS = 256 * 2**20
MAX_EVENTS = 1_000_000
"""The most events of a trace. Ten ranks that send a thousand messages a step have this many in a hundred steps."""

_MAX_EVENT = 2**20
_PIECE = 2**20
_SPACE = re.compile(r"\s*+")
_DECODER = json.JSONDecoder()


class NoTraceError(ValueError):
    """A file is not a trace. `what` is for the user; an empty `rule` stands for the general rule of traces."""

    def __init__(self, what: str, rule: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.rule = rule


def read_events(stream: BinaryIO) -> Iterator[Mapping[str, Any]]:
    """Yield the events of an array, or of the array `traceEvents` of an object. A crash may have cut the array off."""
    text = _Text(stream)
    if text.next() == "{":
        _find_events(text)
    if text.next() != "[":
        raise NoTraceError("it holds no array of events" if text.has_value() else "it is no JSON")
    text.skip()
    for number in range(MAX_EVENTS):
        if text.next() in {"]", ""}:
            return
        try:
            event = text.value()
        except ValueError as error:
            # The array was cut off, and its last line holds no complete event.
            if number and text.is_last_line():
                return
            raise NoTraceError("it is no JSON") from error
        if isinstance(event, dict):
            yield event
        if text.next() == ",":
            text.skip()
        elif text.next() not in {"]", ""}:
            raise NoTraceError("it is no JSON")
    raise NoTraceError("it has too many events", f"at most {MAX_EVENTS:,} events")


def _find_events(text: _Text) -> None:
    """Move to the value of `traceEvents`, past the keys before it."""
    text.skip()
    for _ in range(MAX_EVENTS):
        if text.next() != '"':
            break
        try:
            key = text.value()
            if text.next() != ":":
                break
            text.skip()
            if key == "traceEvents":
                return
            text.next()
            text.value()
        except ValueError as error:
            raise NoTraceError("it is no JSON") from error
        if text.next() != ",":
            break
        text.skip()
    raise NoTraceError("it holds no array of events" if text.next() == "}" else "it is no JSON")


class _Text:
    """A text that is read in pieces: it keeps one piece in memory, and the position in it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._at = 0
        self._num_characters = 0
        self._is_whole = False

    def next(self) -> str:
        """Skip spaces and return the next character without consuming it; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None, "no space at all matches too"
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if self._is_whole:
                return ""
            self._read()

    def skip(self) -> None:
        """Consume the next character."""
        self._at += 1

    def value(self) -> Any:
        """Read the JSON value that begins here; raise ValueError if there is none or it is too long."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                # The value may continue in the next piece.
                if self._is_whole or len(self._text) - self._at > _MAX_EVENT:
                    raise ValueError("no value") from error
            else:
                # A number at the end of a piece may also continue.
                if end < len(self._text) or self._is_whole:
                    self._at = end
                    return value
            self._read()

    def has_value(self) -> bool:
        """Consume a JSON value if one begins here, and return whether one did."""
        try:
            self.value()
        except ValueError:
            return False
        return True

    def is_last_line(self) -> bool:
        """Return whether only the rest of one line follows."""
        return self._is_whole and "\n" not in self._text[self._at :].rstrip()

    def _read(self) -> None:
        raw = self._stream.read(_PIECE)
        self._is_whole = not raw
        piece = self._decoder.decode(raw, final=self._is_whole)
        self._text = self._text[self._at :] + piece
        self._at = 0
        self._num_characters += len(piece)
        if self._num_characters > MAX_CHARACTERS:
            raise NoTraceError("the file is too large", f"at most {MAX_CHARACTERS:,} characters")
