"""The handshake by which a rank and its service prove that they know the token of this launch, without sending it.

    service -> rank     {"challenge": C}                                 C drawn for this connection
    rank -> service     {"rank": R, "nonce": N, "proof": sign("rank", R, C, N)}      N drawn for this connection
    service -> rank     {"proof": sign("service", R, N, C)}

A proof is a signature (an HMAC with the token) over the name of its side, the rank, and both numbers. So a proof that
an outsider has overheard is useless on another connection, and neither side can reuse the proof of the other. Ranks
find the token in their environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autosync.signatures import draw_number, is_signature, sign
from autosync.trials.channel import Channel, ControlError

MAX_GREETING_BYTES = 1024
"""The most that a connection may send before it has proved anything."""
ANSWER_SECONDS = 10.0
"""The time for which a rank waits for each of the service's two messages before it tries another connection."""


class ImpostorError(ControlError):
    """The listening process does not know the token, so it is not the service."""


def rank_of(greeting: Mapping[str, Any], token: str, challenge: str) -> tuple[int, dict[str, str]]:
    """On the service, return the rank that a greeting proves and the answer to it; raise ControlError without proof."""
    rank, nonce, proof = greeting.get("rank"), greeting.get("nonce"), greeting.get("proof")
    if type(rank) is not int or not isinstance(nonce, str) or not isinstance(proof, str):
        raise ControlError("no rank, nonce and proof")
    if not is_signature(proof, token, "rank", rank, challenge, nonce):
        raise ControlError("it does not know the token")
    return rank, {"proof": sign(token, "service", rank, nonce, challenge)}


def introduce(channel: Channel, token: str, rank: int) -> None:
    """On a rank, prove that it knows the token, and check that the service knows it too."""
    challenge, nonce = str(channel.receive(ANSWER_SECONDS, MAX_GREETING_BYTES).get("challenge")), draw_number()
    channel.send({"rank": rank, "nonce": nonce, "proof": sign(token, "rank", rank, challenge, nonce)})
    answer = channel.receive(ANSWER_SECONDS)
    if not is_signature(answer.get("proof"), token, "service", rank, nonce, challenge):
        raise ImpostorError("the process that listens there does not know the token")
