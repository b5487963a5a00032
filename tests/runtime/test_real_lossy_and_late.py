"""Codecs, late parameters and periodic averages on real ranks and real servers, held against the reference."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autosync.plan.bundling import bundled
from autosync.plan.reference.interpreter import interpret
from autosync.plan.reference.meaning import meaning
from autosync.plan.reference.workload import Workload
from autosync.plan.types import Local
from autosync.runtime.memory.kept_state import Place
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.codecs import Cast, Int8, PowerSGD, Sign, TopK
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from tests.helpers.example_plans import ALL, SGD, Example, cluster_of, examples, model_of

HERE = Path(__file__).parent
NUM_STEPS = 7


def bundle_of(example: Example, folder: Path, name: str) -> tuple[Bundle, str]:
    """In float64, so that equal means equal."""
    variables = tuple(replace(variable, dtype="float64") for variable in example.model.variables)
    example = replace(example, model=replace(example.model, variables=variables))
    bundle = bundled(example.strategy, example.model, example.cluster)
    path = folder / f"{name}.yaml"
    save_bundle(path, bundle)
    return bundle, str(path)


def more_examples(overlap: Any) -> dict[str, Example]:
    """What the examples have not: each with another topology, or several kinds side by side."""
    three = cluster_of(1, 1, 1)
    stale = ParameterServer(server="n0", staleness=1)
    strategies = {
        "top_k": Strategy(
            messages=(Message(parts=ALL, synchroniser=AllReduce(topology="ring"), codec=TopK(ratio=0.2)),)
        ),
        "top_k, momentum": Strategy(messages=(Message(parts=ALL, codec=TopK(ratio=0.2, momentum=0.9)),)),
        "cast, native": Strategy(
            messages=(
                Message(parts=("table",), codec=Cast()),
                Message(parts=("linear",), codec=Cast(dtype="float16")),
                Message(parts=("bias",), synchroniser=Sharded(), codec=Cast()),
            )
        ),
        "power_sgd, tree": Strategy(
            messages=(
                Message(parts=("table", "linear"), synchroniser=AllReduce(topology="tree"), codec=PowerSGD(rank=2)),
                Message(parts=("bias",)),
            )
        ),
        "stale and periodic": Strategy(
            messages=(
                Message(parts=("linear",), synchroniser=stale, codec=Int8(block=4, error_feedback=True)),
                Message(parts=("bias",), synchroniser=Periodic(every=3, topology="ring"), lane=1),
                Message(parts=("table",), lane=2),
            )
        ),
        "far behind": Strategy(messages=(Message(parts=ALL, synchroniser=replace(stale, staleness=4)),)),
    }
    return {
        name: Example(strategy=replace(strategy, overlap=overlap), model=model_of(), cluster=three)
        for name, strategy in strategies.items()
    }


CHOSEN = {
    (1, 1, 1): (
        "int8",
        "cast",
        "power_sgd",
        "server, workers update, cast",
        "server, workers update, int8",
        "server, stale",
        "server, stale, int8",
        "periodic",
        "periodic, clipped",
        "periodic, outer",
        "top_k",
        "top_k, momentum",
        "cast, native",
        "power_sgd, tree",
        "stale and periodic",
        "far behind",
    ),
    (1, 1): ("rows at server, stale",),
    (2, 2): ("cast, hierarchical", "proxies, cast, stale", "sign"),
    (1, 1, 0): ("server apart, stale", "server apart, cast", "server apart, stale, int8"),
}


def chosen(devices: tuple[int, ...]) -> dict[str, Example]:
    found = {}
    for overlap in ("backward", "forward"):
        named = {**examples(overlap), **more_examples(overlap)}
        apart = named["server apart, stale"]
        for name, codec, staleness in (("server apart, cast", Cast(), 0), ("server apart, stale, int8", Int8(), 2)):
            at = ParameterServer(server="n2", staleness=staleness)
            messages = tuple(replace(one, synchroniser=at, codec=codec) for one in apart.strategy.messages)
            strategy = replace(apart.strategy, messages=messages)
            # By plain SGD, under which gradients that are too long show.
            named[name] = replace(apart, strategy=strategy, model=model_of(optimizer=SGD))
        four = cluster_of(2, 2)
        ways = {
            "cast, hierarchical": Message(parts=ALL, synchroniser=AllReduce(hierarchical=True), codec=Cast()),
            "proxies, cast, stale": Message(
                parts=ALL, synchroniser=ParameterServer(server="n1", local_proxy=True, staleness=1), codec=Cast()
            ),
            "sign": Message(parts=ALL, codec=Sign()),
        }
        for name, message in ways.items():
            strategy = Strategy(messages=(message,), overlap=overlap)
            named[name] = Example(strategy=strategy, model=model_of(), cluster=four)
        found.update({f"{name}, {overlap}": named[name] for name in CHOSEN[devices]})
    return found


def in_turn(devices: tuple[int, ...]) -> list[str]:
    """Half of those chosen: each strategy with one overlap."""
    return [f"{name}, {('backward', 'forward')[place % 2]}" for place, name in enumerate(CHOSEN[devices])]


@pytest.mark.parametrize(
    ("devices", "are_all"),
    [
        ((1, 1, 1), False),
        ((1, 1), False),
        *(pytest.param(devices, True, marks=pytest.mark.slow) for devices in CHOSEN),
    ],
)
def test_real_ranks_mean_what_the_reference_says(
    devices: tuple[int, ...], are_all: bool, make_ranks: Callable[[str], Any], serve: Callable[..., Any]
) -> None:
    ranks = make_ranks("one node")
    bundles = {
        name: bundle_of(example, ranks.folder, f"bundle-{number}")
        for number, (name, example) in enumerate(chosen(devices).items())
        if are_all or name in in_turn(devices)
    }
    ranks.cluster = next(iter(bundles.values()))[0].cluster
    paths = [path for _, path in bundles.values()]
    server = serve(ranks.folder, paths, "n2") if 0 in devices else None
    cases = [("workload_cases:trained", {"bundle": path, "num_steps": NUM_STEPS}) for path in paths]
    answers = ranks.run(cases)
    for number, given in enumerate(answers):
        assert len(given) == len(paths), f"rank {number}:\n{(ranks.folder / 'log').read_text()}"
        for (name, (bundle, _)), answer in zip(bundles.items(), given, strict=True):
            assert isinstance(answer, dict), f"rank {number}, {name}: {answer}"
            check(name, bundle, number, answer)
    if server is not None:
        server.wait(30)
        assert json.loads((ranks.folder / "served-n2.json").read_text()) == [NUM_STEPS] * len(paths)


def check(name: str, bundle: Bundle, rank: int, answer: dict[str, Any]) -> None:
    """Parameters and residuals are those of the reference; for stale ones also what the strategy's words mean."""
    example = Example(strategy=bundle.strategy, model=bundle.model, cluster=bundle.cluster)
    plan, workload = example.plan(), Workload(model=bundle.model)
    expected = interpret(plan, workload, num_steps=NUM_STEPS, rng=random.Random(2))
    tolerance = 1e-2 if "cast" in name else 1e-11
    references = [expected.parameters[rank]]
    if "lossy" not in bundle.strategy.classes:
        references.append(meaning(bundle.strategy, workload, num_workers=plan.num_workers, num_steps=NUM_STEPS)[rank])
    for reference in references:
        for variable, value in reference.items():
            found = torch.tensor(answer["parameters"][variable], dtype=torch.float64)
            difference = (found - torch.from_numpy(value)).norm() / (1 + torch.from_numpy(value).norm())
            assert difference < tolerance, f"rank {rank}, {name}: {variable} by {difference:.2g}"
    fed_back = {
        index
        for operation in plan.operations
        if isinstance(operation, Local) and operation.kind == "encode" and operation.settings.error_feedback
        if any(rank in group for group in operation.groups)
        for index in operation.inputs
    }
    codecs = [message.codec for message in bundle.strategy.messages if message.codec is not None]
    assert bool(fed_back) == any(codec.error_feedback for codec in codecs), f"rank {rank}, {name}"
    for index in fed_back:
        region = plan.regions[index]
        key = f"residual {Place.of(plan.parts[region.part], region.start, region.stop)}"
        residual = torch.tensor(answer["kept"][key], dtype=torch.float64)
        held = torch.from_numpy(expected.residuals[rank, index])
        assert (residual - held).norm() < 1e-9, f"rank {rank}, {name}: {key}"


@pytest.mark.slow
def test_what_else_happens_in_training(make_ranks: Callable[[str], Any]) -> None:
    """A NaN on one rank; a long pause; a second backward pass."""
    ranks = make_ranks("one node")
    ranks.cluster = cluster_of(1, 1)
    outer = (Message(parts=ALL, synchroniser=Periodic(every=2, outer=OuterOptimizer())),)
    stale = (Message(parts=ALL, synchroniser=ParameterServer(server="n0", staleness=2)),)
    int8 = (Message(parts=ALL, codec=Int8(block=7)),)
    paths = {
        name: bundle_of(
            Example(strategy=Strategy(messages=messages), model=model_of(), cluster=ranks.cluster), ranks.folder, name
        )[1]
        for name, messages in {"outer": outer, "stale": stale, "int8": int8}.items()
    }
    answers = ranks.run(
        [
            ("workload_cases:idles", {"bundle": paths["stale"], "seconds": 8}),
            ("workload_cases:accumulates_twice", {"bundle": paths["outer"]}),
            ("workload_cases:not_a_number", {"bundle": paths["int8"]}),
        ]
    )
    for rank, given in enumerate(answers):
        assert len(given) == 3, f"rank {rank}:\n{(ranks.folder / 'log').read_text()}"
        idled, twice, no_number = given
        assert idled == "", answers
        assert twice.startswith("a second backward pass before optimizer.step(): the gradient of "), answers
        if rank == 1:
            assert "encode of " in no_number
            assert "the gradient of linear has a NaN or an infinity" in no_number
        else:
            assert no_number.startswith("rank 0: "), no_number
