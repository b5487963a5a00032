"""Runs scripts on real ranks: as they are, under stock DDP, and through the script door with a strategy."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
SITE = HERE.parent / "script_suite" / "site"
HUNG = 124
"""The exit code that `ranks_main` answers for a rank that it had to end."""
sys.path.insert(0, str(HERE))
import script_tasks  # noqa: E402 - it lies here

sys.path.remove(str(HERE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the ranks of a run ended: their exit codes, what they wrote, and what the script saved."""

    codes: tuple[int, ...]
    logs: tuple[str, ...]
    saved: tuple[Any, ...]


class Ranks:
    """Runs scripts on ranks, one run after the other. Ranks are forked from one process, which has imported torch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stock: dict[str, Outcome] = {}
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                (sys.executable, "-P", HERE / "ranks_main.py"),
                # Frameworks import torchvision, whose wheel may lack operators beside a torch without CUDA.
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SITE)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def run(
        self,
        script: str,
        way: str | None,
        *,
        key: str = "",
        arguments: Sequence[str] = (),
        models: Sequence[dict[str, Any]] = ({},),
        repeats: int = 1,
    ) -> Outcome:
        """Run a script by a strategy, or under stock DDP. `models` are what its bundles are made of."""
        key = key or f"{script}-{way or 'stock'}"
        bundles = [script_tasks.write_bundle(self.folder, script, way, **one) for one in models if way]
        return self._outcome(script, key, arguments, bundles, repeats=repeats)

    def stock(self, script: str) -> Outcome:
        """How a script ends well under stock DDP. It runs once, however many tests compare with it."""
        if script not in self._stock:
            self._stock[script] = self.run(script, None)
            assert self._stock[script].codes == (0, 0), self._stock[script].logs
        return self._stock[script]

    def run_in_turns(
        self, script: str, ways: Sequence[str], *, steps_a_turn: int, arguments: Sequence[str] = (), **model: Any
    ) -> Outcome:
        """Run a script by stock DDP and by each strategy in turn."""
        bundles = [script_tasks.write_bundle(self.folder, script, way, **model) for way in ways]
        return self._outcome(script, f"{script}-turns", arguments, bundles, steps_a_turn=steps_a_turn)

    def run_by_winner(
        self, script: str, way: str, *, num_tuned: int, is_over: bool = True, arguments: Sequence[str] = ()
    ) -> Outcome:
        """Run a script by stock DDP for some steps, and then to its end by a strategy; with `is_over`, it has won."""
        bundle = script_tasks.write_bundle(self.folder, script, way)
        return self._outcome(script, f"{script}-winner", arguments, [bundle], num_tuned=num_tuned, is_over=int(is_over))

    def observe(self, script: str, num_steps: int) -> tuple[Outcome, list[dict[str, Any]]]:
        """Run a script under stock DDP; return also what each rank saw of its first steps."""
        outcome = self._outcome(script, f"{script}-observed", (), (), num_observed=num_steps)
        paths = [self.folder / f"{script}-observed-{rank}.json" for rank in range(script_tasks.NUM_RANKS)]
        return outcome, [json.loads(path.read_text()) for path in paths if path.exists()]

    def _outcome(
        self,
        script: str,
        key: str,
        arguments: Sequence[str],
        bundles: Sequence[Path],
        *,
        repeats: int = 1,
        **numbers: int,
    ) -> Outcome:
        run = {
            "folder": str(self.folder),
            "key": key,
            "script": str(script_tasks.SCRIPTS / f"{script}.py"),
            "arguments": [str(self.folder / key), *arguments],
            "bundles": list(map(str, bundles)),
            "steps_a_turn": 0,
            "num_observed": 0,
            "num_tuned": 0,
            "is_over": 1,
            **numbers,
        }
        codes = self._codes_of(run)
        for _ in range(repeats):
            # Once more: the machine may have been busy. A run that hangs always fails.
            if HUNG in codes:
                codes = self._codes_of(run)
        ranks = range(script_tasks.NUM_RANKS)
        saved = [self.folder / f"{key}-{rank}.pt" for rank in ranks]
        return Outcome(
            codes=tuple(codes),
            logs=tuple((self.folder / f"{key}-{rank}.log").read_text() for rank in ranks),
            saved=tuple(torch.load(path) if path.exists() else None for path in saved),
        )

    def _codes_of(self, run: dict[str, Any]) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(run) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def stop(self) -> None:
        """End what still runs: it is a process group of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    made = Ranks(tmp_path_factory.mktemp("scripts"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def compare() -> Any:
    """Compares what two runs have saved, up to a tolerance."""
    return _compare


def _compare(found: Any, expected: Any, place: str, tolerance: float) -> None:
    if isinstance(expected, dict):
        # An optimizer's state has numbers as keys, in the order in which variables were first updated.
        numbered = all(isinstance(key, int) for key in expected)
        assert (sorted(found) if numbered else list(found)) == list(expected), place
        for key, value in expected.items():
            _compare(found[key], value, f"{place}.{key}", tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for index, value in enumerate(expected):
            _compare(found[index], value, f"{place}[{index}]", tolerance)
    elif isinstance(expected, torch.Tensor | float):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{place}: {text}")
    else:
        assert found == expected, place


@pytest.fixture(scope="session")
def model_spec() -> Any:
    """Returns the model spec of a script's task."""
    return script_tasks.model_spec


@pytest.fixture(scope="session")
def write_bundle() -> Any:
    """Writes the bundle of a script's model, by a strategy, into a folder; its path."""
    return script_tasks.write_bundle
