"""The frames that the launching side and an agent exchange. The agent carries this module to its node.

A frame has a kind, a slot (the process that it is about) and a payload.

To the agent: START (JSON: command, environment, folder, log, files, control, addresses, nics), SIGNAL (a number),
CONTROL (bytes for the rank's control connection; empty: the end of it), STOP (seconds of grace), PING (seconds of
patience; empty: without limit; the slot is a number that PONG repeats).

From the agent: HELLO (JSON), OUTPUT, CONTROL, EXIT (an exit code as in `subprocess`), FAULT (why a process could not
start), PONG, TOLD (a signal that the agent itself received, after which it ends).

Payloads are bounded. Any other frame ends the connection. Nothing here needs a Python newer than 3.8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

START, SIGNAL, CONTROL, STOP, PING = 1, 2, 3, 4, 5
HELLO, OUTPUT, EXIT, FAULT, PONG, TOLD = 11, 12, 13, 14, 15, 16
FROM_AGENT = (HELLO, OUTPUT, CONTROL, EXIT, FAULT, PONG, TOLD)
HEAD = struct.Struct(">BII")

CHUNK_BYTES = 1 << 16
"""The longest payload of a frame from the agent."""
MAX_TOLD_BYTES = 1 << 26
"""The longest payload of a frame to the agent: a START carries files."""


class FrameError(ValueError):
    """Bytes that are no frame, or a frame that is not allowed at this point."""


def frame(kind: int, slot: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return HEAD.pack(kind, slot, len(payload)) + payload


def whole_frames(buffer: bytearray, max_bytes: int = MAX_TOLD_BYTES) -> Iterator[tuple[int, int, bytes]]:
    """Take the complete frames out of a buffer; raise FrameError if a payload is longer than `max_bytes`."""
    while len(buffer) >= HEAD.size:
        kind, slot, length = HEAD.unpack_from(buffer)
        if length > max_bytes:
            raise FrameError(f"a frame of {length} bytes (at most {max_bytes})")
        if len(buffer) < HEAD.size + length:
            return
        payload = bytes(buffer[HEAD.size : HEAD.size + length])
        del buffer[: HEAD.size + length]
        yield kind, slot, payload


def seconds_of(payload: bytes) -> float:
    """Return the seconds in a payload; raise FrameError if they are negative or too many."""
    seconds = float(payload)
    if not 0.0 <= seconds <= 1e9:
        raise FrameError(f"a time of {seconds} s")
    return seconds
