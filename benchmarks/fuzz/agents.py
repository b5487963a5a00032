"""Frames from agents and to agents: messages that a launch receives from other machines, and that an agent receives.

A message from one machine must not be attributed to another, and must not end a thread. An agent must end at an invalid
message and leave nothing behind.
"""

from __future__ import annotations

import base64
import json
import random
import resource
import subprocess
import sys
import time
import zlib
from pathlib import Path

from autosync.errors import OperationError
from autosync.launchers import agent_launch, agent_link, frames
from autosync.launchers.request import LaunchRequest, Process
from benchmarks.fuzz.kinds import Attempt, Failure, Maker
from tests.helpers.damaged_files import damaged, hostile_json

SECONDS = 60
_SPEAKS = "cat {place}.first; read -r program; head -c 1 >{place}.heard; sleep 0.1; cat {place}; sleep 0.5"
"""A command that acts as an agent: it prints its greeting from one file and, once it is told to start something, the
rest from another."""
LENGTHS = (0, 1, 2**16, 2**24, 2**31, 2**32 - 1)


def links(_kind: str, originals: Path) -> Maker:
    """Return a maker of one machine's agent messages to a launch, beside another agent with correct messages."""
    del originals

    def make(rng: random.Random, box: Path) -> Attempt:
        hello = frames.frame(frames.HELLO, 0, json.dumps({"python": "3.11.7", "executable": "x", "host": "h"}).encode())
        pong = frames.frame(frames.PONG, 1)
        honest = pong + frames.frame(frames.OUTPUT, 1, b"honest\n") + frames.frame(frames.EXIT, 1, b"0")
        said = pong if rng.random() < 0.9 else b""
        said += b"".join(_from_agent(rng) for _ in range(rng.choice((0, 1, 2, 5))))
        if rng.random() < 0.3:
            said = damaged(said, rng)
        first = hello
        if rng.random() < 0.2:
            junk = (b"", b"Welcome to h!\r\n" + hello, b"\x1b[2J", b"\0" * 9, b"\xff" * 100_000, damaged(hello, rng))
            first = rng.choice(junk)
        for name, content in (("said", said), ("honest", honest), ("said.first", first), ("honest.first", hello)):
            (box / name).write_bytes(content)
        return lambda: _launched(box)

    return make


def _from_agent(rng: random.Random) -> bytes:
    kind = rng.choice((frames.OUTPUT, frames.CONTROL, frames.EXIT, frames.FAULT, frames.PONG, frames.TOLD, 0, 99, 255))
    slot = rng.choice((0, 0, 0, 1, 2, 2**31, 2**32 - 1))
    payload = rng.choice(
        (b"", b"0", b"1", b"-9", b"x", b"15", b"99999999999", b"\xff\xfe", b"\x1b[31m", b"!", b"9" * 5000)
    )
    if rng.random() < 0.1:
        return frames.HEAD.pack(kind, slot, rng.choice(LENGTHS)) + payload
    return frames.frame(kind, slot, payload)


def _launched(box: Path) -> str:
    """Launch on two machines, whose agents print the contents of files and then stay for a moment."""
    processes = tuple(
        Process(
            rank=rank,
            node=name,
            host=name,
            command=("true",),
            log=box / f"{name}.log",
            reach=("sh", "-c", _SPEAKS.format(place=box / name)),
        )
        for rank, name in enumerate(("said", "honest"))
    )
    try:
        launch = agent_launch.start(LaunchRequest(processes=processes, has_agents=True, folder=str(box)))
    except OperationError:
        return "refused"
    try:
        deadline = time.monotonic() + SECONDS
        while launch.exit_codes()[1] is None and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        launch.stop()
    log = (box / "honest.log").read_bytes()
    if launch.exit_codes()[1] != 0 or log != b"honest\n":
        raise Failure(f"what the honest machine said is not what was heard: {launch.exit_codes()}, {log[:200]!r}")
    return "taken"


def agents(_kind: str, originals: Path) -> Maker:
    """Return a maker of messages from a launching process to an agent."""
    del originals
    program = base64.b64encode(zlib.compress(agent_link.agent_program().encode(), 9)) + b"\n"

    def make(rng: random.Random, box: Path) -> Attempt:
        told = b"".join(_to_agent(rng, box) for _ in range(rng.choice((1, 2, 4))))
        if rng.random() < 0.3:
            told = damaged(told, rng)
        return lambda: _minded(program, told)

    return make


def _to_agent(rng: random.Random, box: Path) -> bytes:
    fields = {
        "command": ["true"],
        "environment": {"A": "b"},
        "folder": str(box),
        "log": None,
        "files": {"F": ["name", "text"]},
        "control": rng.random() < 0.5,
        "addresses": ["127.0.0.1"],
        "nics": 1,
    }
    # An agent's job is to run commands, so the choice of the command is not tested here.
    command = fields.pop("command")
    start = hostile_json(fields, rng) if rng.random() < 0.7 else json.dumps(fields).encode()
    start = b'{"command": ' + json.dumps(command).encode() + b", " + start[1:] if start[:1] == b"{" else start
    kind, payload = rng.choice(
        (
            (frames.START, start),
            (frames.START, start),
            (frames.SIGNAL, rng.choice((b"0", b"15", b"99", b"x", b"", b"-1"))),
            (frames.STOP, rng.choice((b"0", b"0.1", b"nan", b"inf", b"x", b"", b"-1", b"1e400"))),
            (frames.PING, rng.choice((b"", b"30", b"nan", b"x", b"-1", b"inf"))),
            (frames.CONTROL, rng.choice((b"", b"x", b"x" * 100_000))),
            (rng.choice((0, 6, 11, 255)), b"x"),
        )
    )
    slot = rng.choice((0, 1, 2**32 - 1))
    if rng.random() < 0.05:
        return frames.HEAD.pack(kind, slot, rng.choice(LENGTHS)) + payload
    return frames.frame(kind, slot, payload)


def _minded(program: bytes, told: bytes) -> str:
    """Start an agent, send it these messages, and close its input."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with subprocess.Popen(
        agent_link.boot_command(sys.executable), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None, "asked for"
        assert process.stdout is not None, "asked for"
        process.stdin.write(program)
        process.stdin.flush()
        # Frames come after the agent has greeted.
        process.stdout.read(frames.HEAD.size)
        try:
            _, said = process.communicate(told, timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise Failure("the agent does not end") from error
    if b"Traceback" in said or process.returncode not in {0, 1}:
        raise Failure(f"the agent ended with {process.returncode}: {said[-600:].decode('utf-8', 'replace')}")
    check_children(before)
    return "taken" if process.returncode == 0 else "refused"


def check_children(before_kilobytes: int) -> None:
    """Raise if a child process has used too much memory."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    if most > before_kilobytes and most * 1024 > 300 * 10**6 + _own_bytes():
        raise Failure(f"{most / 1000:.0f} MB of memory")


def _own_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
