"""Checkpoints on real ranks that do not fit, and calls that are wrong, are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.strategy.codecs import PowerSGD, TopK
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from tests.helpers.example_plans import ALL, Example, cluster_of, model_of
from tests.runtime.checkpoint_launch import Launch, bundle_of

SMALL = model_of()
LARGER = replace(SMALL, variables=(*SMALL.variables[:2], replace(SMALL.variables[2], shape=(6,))))
FACTORS = Message(parts=("linear",), codec=PowerSGD(rank=1))
LATE = Message(parts=("table", "bias"), synchroniser=ParameterServer(server="n0", staleness=1))
LATER = Message(parts=LATE.parts, synchroniser=ParameterServer(server="n0", staleness=2))
CUT = Message(parts=("linear[0]", "linear[1]"), codec=PowerSGD(rank=1))


def made(*messages: Message, **more: Any) -> Example:
    return Example(strategy=Strategy(messages=messages, **more), model=SMALL, cluster=cluster_of(1, 1))


SAVED = made(FACTORS, LATE)
REFUSED: dict[str, tuple[Example, str]] = {
    "strange": (
        SAVED,
        "autosync.load: table is not what it was when the checkpoint was made (model.load_state_dict of",
    ),
    "codec": (
        made(Message(parts=("linear",), codec=TopK(ratio=0.5)), LATE),
        (
            "the checkpoint does not fit this strategy: linear was trained with codec power_sgd (error_feedback True, "
            "rank 1); here it is trained with codec top_k ("
        ),
    ),
    "rank": (
        made(Message(parts=("linear",), codec=PowerSGD(rank=2)), LATE),
        (
            "linear was trained with codec power_sgd (error_feedback True, rank 1); here it is trained with codec "
            "power_sgd (error_feedback True, rank 2)"
        ),
    ),
    "staleness": (
        made(FACTORS, LATER),
        "bias was trained with staleness 1; here it is trained with staleness 2",
    ),
    "exact": (
        made(FACTORS, Message(parts=LATE.parts)),
        "bias was trained with staleness 1; here it is trained with nothing of the kind",
    ),
    "partition": (
        made(CUT, LATE, partitions={"linear": Partition(axis=0, sizes=(2, 2))}),
        "there is no right linear 0:2 of axis 0",
    ),
    "model": (
        replace(SAVED, model=LARGER),
        f"the checkpoint is of model small ({SMALL.fingerprint()}); this is small ({LARGER.fingerprint()})",
    ),
    "groups": (
        SAVED,
        "the checkpoint's optimizer has 3 parameters in 1 groups, this one has 3 in 3: they are in other",
    ),
}
"""What is loaded into, and the words of the refusal, by what does not fit a checkpoint of `SAVED`."""


@pytest.mark.timeout(300)
def test_what_does_not_fit_is_refused_by_name(
    make_ranks: Callable[[str], Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    saved = bundle_of(SAVED, tmp_path, "saved")
    plain = bundle_of(made(Message(parts=ALL)), tmp_path, "plain")
    bundles = {name: bundle_of(example, tmp_path, name) for name, (example, _) in REFUSED.items()}
    folder = str(tmp_path / "engine")
    answers = Launch(make_ranks("one node"), SAVED, serve).run(
        [
            ("saves", {"bundle": saved, "num_steps": 2, "folder": folder}),
            ("refusals", {"bundles": bundles, "folder": folder}),
            ("saves", {"bundle": plain, "num_steps": 2, "folder": f"{folder}-plain"}),
            ("refusals", {"bundles": {"optimizer": plain}, "folder": f"{folder}-plain"}),
            ("counts_steps", {"bundle": plain, "folder": f"{folder}-counted"}),
        ]
    )
    for rank, (_, refused, _, optimizer, counted) in enumerate(answers):
        assert counted == [1, 2]
        assert isinstance(refused, dict), refused
        for name, (_, words) in REFUSED.items():
            assert words in refused[name], (rank, name, refused)
            assert "and changed" not in refused[name]
        assert optimizer == {
            "optimizer": "OperationError: autosync.load: the checkpoint is of optimizer Adam; this is SGD"
        }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wrong_calls_are_refused_by_name(
    make_ranks: Callable[[str], Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    arguments = {"bundle": bundle_of(SAVED, tmp_path, "saved"), "folder": str(tmp_path / "engine-2")}
    answers = Launch(make_ranks("one node"), SAVED, serve).run([("calls", arguments)])
    for rank, (called,) in enumerate(answers):
        assert isinstance(called, dict), called
        assert called["another path"].startswith("OperationError: autosync.load: worker 0: ")
        assert "cannot be read: No such file" in called["another path"]
        assert "File exists" in called["no folder"]
        assert "worker 1 has folder engine-2-1, worker 0 has engine-2-0" in called["two folders"]
        assert called["left behind"] == "False"
        assert "worker 1 has to 1, worker 0 has None" in called["to one or all"]
        assert called["another call"] == (
            f"OperationError: autosync.{'save' if rank else 'load'}: worker 1 has call autosync.save, worker 0 has "
            "autosync.load (all workers must call it alike)"
        )
        assert called["in the midst"] == (
            "OperationError: autosync.save between backward and optimizer.step(): gradients are on their way"
        )
        assert called["to nobody"] == "OperationError: autosync.consolidate: no worker 7 (0 to 1)"
        assert called["not parallel"].startswith("OperationError: the model is not parallelized")
