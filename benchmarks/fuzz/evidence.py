"""Damaged lines of evidence, as ranks print them for `autosync doctor`, among lines that a script may print."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from autosync import documents
from autosync.doctor.diagnosis import diagnose
from autosync.doctor.evidence import (
    KIND,
    VERSION,
    Processors,
    RankEvidence,
    ReadyGradient,
    WatchedMessage,
    WatchedPass,
    WatchedSettings,
    WatchedStep,
    WatchedVariable,
)
from autosync.doctor.gain import gain_of_script
from autosync.doctor.gathering import evidence_from
from autosync.doctor.post import Mailbox, in_lines
from benchmarks.clusters import on_this_machine
from benchmarks.fuzz.kinds import Attempt, Maker
from tests.helpers.damaged_files import damaged_lines, hostile_json

_NUM_RANKS = 2


def maker(_kind: str, originals: Path) -> Maker:
    """Return a maker of lines of output."""
    del originals
    good = [documents.dump(_rank(rank), kind=KIND, version=VERSION) for rank in range(_NUM_RANKS)]

    def make(rng: random.Random, box: Path) -> Attempt:
        del box
        lines = b"".join(_lines(rank, document, rng) for rank, document in enumerate(good))
        if rng.random() < 0.5:
            lines = damaged_lines(lines, rng)
        return lambda: _diagnosed(lines)

    return make


def _lines(rank: int, document: dict[str, Any], rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return b"".join(in_lines(rng.choice((rank, rank, rank, 7)), document))
    return b"\nautosync-evidence %d 1/1 %s\n" % (rank, hostile_json(document, rng).replace(b"\n", b" "))


def _diagnosed(lines: bytes) -> str:
    """Read the lines as a doctor does, and diagnose what they say."""
    mailbox = Mailbox(_NUM_RANKS)
    for line in lines.decode("utf-8", "replace").split("\n"):
        mailbox.take(f"n0 rank 0 | {line}")
    cluster = on_this_machine(_NUM_RANKS)
    evidence = evidence_from(cluster, mailbox)
    diagnose(evidence, gain=gain_of_script(evidence, cluster))
    return "read"


def _rank(rank: int) -> RankEvidence:
    return RankEvidence(
        rank=rank,
        steps=tuple(_step(float(number)) for number in range(4)),
        settings=WatchedSettings(bucket_cap_mb=25.0),
        variables=(WatchedVariable(name="w", num_bytes=4_000_000, least_bytes=4_000_000),),
        processors=Processors(machine="m", own=0.4, others=0.1, waited_seconds=0.01, seconds=4.0),
        small_message_seconds=0.001,
    )


def _step(begin: float) -> WatchedStep:
    passes = WatchedPass(
        begin=begin + 0.01,
        buffer_seconds=0.01,
        forward_end=begin + 0.2,
        backward_end=begin + 0.5,
        end=begin + 0.8,
        messages=(WatchedMessage(num_bytes=4_000_000, ready=begin + 0.4, done=begin + 0.8),),
        gradients=(ReadyGradient(num_bytes=4_000_000, ready=begin + 0.4),),
    )
    return WatchedStep(begin=begin, passes=(passes,), update_begin=begin + 0.8, end=begin + 0.9)
