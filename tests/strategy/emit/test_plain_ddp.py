"""What is emitted makes torch's own reducer build the promised buckets, on real ranks, and average as promised."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.strategy.codecs import Cast, Codec
from autosync.strategy.emit.script import emit_ddp
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.common import in_ready_order
from autosync.strategy.representation import Message, Strategy

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 120
NODE = Node(name="this", host="localhost", devices=2, bandwidth_out=1e9, bandwidth_in=1e9)
PAIR = ClusterSpec(name="pair", nodes=(NODE,))


@cache
def _model(name: str) -> ModelSpec:
    return model_of(f"{HERE / 'emit_tasks.py'}:{name}")


def _runs(model: ModelSpec, *lengths: int, codec: Codec | None = None) -> Strategy:
    """Messages of so many gradients each, in the order in which they come; dtypes apart."""
    variables = in_ready_order(model.variables)
    messages = []
    for dtype in dict.fromkeys(variable.dtype for variable in variables):
        left = [variable.name for variable in variables if variable.dtype == dtype]
        for length in (*lengths, len(left)):
            if left[:length]:
                messages.append(Message(parts=tuple(left[:length]), codec=codec))
            left = left[length:]
    return Strategy(messages=tuple(messages))


@cache
def _cases() -> dict[str, tuple[ModelSpec, Strategy]]:
    residual, mixed, idle = _model("residual"), _model("mixed"), _model("idle")
    return {
        "residual.default": (residual, build_preset("ddp", residual, PAIR)),
        "residual.cap": (residual, build_preset("ddp_cap", residual, PAIR, cap_bytes=10_000)),
        "residual.alone": (residual, build_preset("all_reduce_per_variable", residual, PAIR)),
        "residual.runs": (residual, _runs(residual, 1, 5, 2, 3, 1)),
        "residual.growing": (residual, _runs(residual, 1, 2, 4, 8)),
        "residual.fp16": (residual, _runs(residual, 3, 9, codec=Cast(dtype="float16"))),
        "residual.power": (residual, build_preset("power_sgd", residual, PAIR)),
        "mixed.runs": (mixed, _runs(mixed, 2, 2)),
        "idle.runs": (idle, _runs(idle, 1, 1)),
    }


@cache
def _answers() -> dict[str, Any]:
    with TemporaryDirectory() as text:
        folder = Path(text)
        for name, (model, strategy) in _cases().items():
            (folder / f"{name}.py").write_text(emit_ddp(strategy, model, PAIR).python, encoding="utf-8")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, str(HERE / "plain_ddp.py")]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), "2", text],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(2)
        ]
        try:
            results = [rank.communicate(timeout=TIMEOUT_SECONDS) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    for rank, (_, errors) in zip(ranks, results, strict=True):
        assert rank.returncode == 0, errors
    answers = map(json.loads, results[0][0].splitlines())
    return {answer["case"]: answer for answer in answers}


CASES = [
    "residual.default",
    "residual.cap",
    "residual.alone",
    "residual.runs",
    "residual.growing",
    "residual.fp16",
    "residual.power",
    "mixed.runs",
    "idle.runs",
]


@pytest.mark.parametrize("case", CASES)
def test_torch_builds_the_promised_buckets(case: str) -> None:
    model, strategy = _cases()[case]
    promised = [bucket["variables"] for bucket in emit_ddp(strategy, model, PAIR).fields["buckets"]]
    built = _answers()[case]["buckets"]
    if case.startswith("mixed"):
        # What is left open at the end comes in the order of a hash table there.
        built, promised = sorted(built), sorted(promised)
    assert built == promised
    if not case.endswith("power"):
        # What got no gradient when it was profiled is frozen first.
        idle = {variable.name for variable in model.variables if variable.idle}
        messages = [sorted(set(message.parts) - idle) for message in strategy.messages]
        assert sorted(map(sorted, built)) == sorted(filter(None, messages))


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_averaged_as_the_strategy_says(case: str) -> None:
    error = _answers()[case]["error"]
    if case.endswith("power"):
        assert 0.01 < error < 1, "a product of two thin matrices"
    elif case.endswith("16"):
        assert 1e-5 < error < 0.01, "numbers of half the size"
    else:
        assert error < 1e-6


def test_all_cases_ran() -> None:
    assert sorted(_answers()) == sorted(CASES) == sorted(_cases())
