"""Timelines of the engine and the simulators, for `draw timeline`."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from benchmarks.fuzz.commands import command
from benchmarks.fuzz.kinds import Attempt, Maker
from tests.helpers.damaged_files import damaged, damaged_lines, hostile_json, lead_astray

_STRANGE: tuple[Any, ...] = (0, -1, 0.5, 1e17, 10**17, 2**63, -(2**63), True, None, "1", [], {})


def maker(_kind: str, originals: Path) -> Maker:
    """Return a maker of damaged timelines of one rank and of several."""
    simulated = originals / "simulated.json"
    arguments = ["simulate", "bytescheduler", "--model", "ncf", "--cluster", "2-hosts", "--simulator", "timeline"]
    command([*arguments, "--trace", str(simulated)])
    good = [simulated.read_bytes(), _as_the_engine(simulated)]

    def make(rng: random.Random, box: Path) -> Attempt:
        path = box / "trace-rank0.json"
        path.write_bytes(_damaged(rng.choice(good), rng))
        if rng.random() < 0.05:
            lead_astray(path, box.parent / "victim", rng)
        others = [str(simulated)] if rng.random() < 0.2 else []
        options = rng.choice(([], ["--steps", "1"], ["--steps", "100"], ["--first", "1", "--steps", "1"]))
        asked = ["draw", "timeline", str(path), *others, *options]
        return lambda: command([*asked, "--json", "-o", f"{box}/out/x.svg"])

    return make


def _as_the_engine(simulated: Path) -> bytes:
    """Return the same events, one on each line, as a rank writes them while it trains."""
    value = json.loads(simulated.read_bytes())
    events = value["traceEvents"] if isinstance(value, dict) else value
    return b"[\n" + b",\n".join(json.dumps(event).encode() for event in events[:200]) + b"\n]\n"


def _damaged(raw: bytes, rng: random.Random) -> bytes:
    match rng.randrange(6):
        case 0:
            return damaged(raw, rng)
        case 1:
            return damaged_lines(raw, rng)
        case 2 | 3:
            return hostile_json(json.loads(raw), rng)
    value = json.loads(raw)
    events = value["traceEvents"] if isinstance(value, dict) else value
    for _ in range(rng.choice((1, 3, 50))):
        event = rng.choice(events)
        event[rng.choice(("ts", "dur", "tid", "pid", "cat", "ph", "name", "args"))] = copy.deepcopy(
            rng.choice(_STRANGE)
        )
        if isinstance(event.get("args"), dict) and rng.random() < 0.3:
            event["args"]["iteration"] = copy.deepcopy(rng.choice(_STRANGE))
    return json.dumps(value).encode()
