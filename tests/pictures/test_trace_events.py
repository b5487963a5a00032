"""Events are read piece by piece, wherever a piece ends and however large the file is."""

import io
import json
from typing import Any

import pytest

from autosync.pictures import trace_events
from autosync.pictures.trace_events import NoTraceError, read_events

EVENTS: list[dict[str, Any]] = [
    {"name": f"é {number}", "ts": number * 1.5, "args": {"a": [1, "]"]}} for number in range(5)
]


class Repeated(io.RawIOBase):
    """A file that repeats one text, counted."""

    def __init__(self, head: bytes, text: bytes) -> None:
        super().__init__()
        self._head, self._text = head, text
        self.num_bytes = 0

    def read(self, size: int = -1) -> bytes:
        piece, self._head = self._head or self._text * (size // len(self._text)), b""
        self.num_bytes += len(piece)
        return piece


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_pieces_may_end_anywhere(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_events, "_PIECE", size)
    other = {"unit": "ms", "n": 12345, "traceEvents": EVENTS, "more": 1}
    for text in (json.dumps(EVENTS), json.dumps(EVENTS, indent=2), json.dumps(other, ensure_ascii=False)):
        assert list(read_events(io.BytesIO(text.encode()))) == EVENTS
    torn = json.dumps(EVENTS)[:-10].encode()
    assert list(read_events(io.BytesIO(torn))) == EVENTS[:-1]


@pytest.mark.parametrize(
    ("head", "text", "what"),
    [
        (b"[1", b",1", "too many events"),
        (b"[{}", b",{}", "too many events"),
        (b"[", b"[", "no JSON"),
        (b'[{"a":1', b',"b":1', "no JSON"),
        (b"[", b" ", "too large"),
        (b'["', b"x", "no JSON"),
        (b"[1", b"1", "no JSON"),
        (b"{", b'"a":1,', "no JSON|no array"),
        (b'{"a":[', b"[],", "no JSON"),
    ],
)
def test_what_has_no_end_is_refused(head: bytes, text: bytes, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_events, "MAX_EVENTS", 20_000)
    monkeypatch.setattr(trace_events, "MAX_CHARACTERS", 4 * 2**20)
    stream = Repeated(head, text)
    with pytest.raises(NoTraceError, match=what):
        list(read_events(stream))  # type: ignore[arg-type]
    assert stream.num_bytes < 5 * 2**20


@pytest.mark.parametrize("text", ['[{"a":1} {"a":2}]', '[{"a":1},x\n{"a":2}]', '{"traceEvents" [', "{1:2}", "nonsense"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(NoTraceError, match="no JSON"):
        list(read_events(io.BytesIO(text.encode())))
