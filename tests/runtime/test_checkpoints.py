"""Checkpoints on real ranks: training that was saved goes on as if it had never stopped, on as many ranks or others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autosync.plan.reference.workload import Workload
from autosync.runtime.checkpoints.folder import read
from autosync.strategy.codecs import Cast, Int8, PowerSGD, TopK
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from tests.helpers.example_plans import ALL, SGD, Example, cluster_of, examples, model_of
from tests.helpers.workload_model import WorkloadModel, workload_optimizer
from tests.runtime.checkpoint_launch import Launch, bundle_of

# Odd numbers, so that periods of two steps are cut in half, and more steps than anything is late.
HALF, WHOLE = 5, 9

HANDED_OFF = "reducer"


def more_examples(overlap: Any) -> dict[str, Example]:
    """Variables that are cut, merged and sliced, kept in several ways side by side."""
    cut = {"table": Partition(axis=1, sizes=(1, 2)), "linear": Partition(axis=0, sizes=(3, 1))}
    three = cluster_of(1, 1, 1)
    stale = ParameterServer(server="n0", staleness=1)
    strategies = {
        HANDED_OFF: Strategy(messages=(Message(parts=("bias", "linear", "table")),)),
        "parts": Strategy(
            partitions=cut,
            messages=(
                Message(parts=("table[0]", "linear[1]"), synchroniser=Sharded()),
                Message(parts=("table[1]", "bias"), synchroniser=ParameterServer(server="n1"), lane=1),
                Message(parts=("linear[0]",), lane=2),
            ),
        ),
        "stale and periodic": Strategy(
            messages=(
                Message(parts=("linear",), synchroniser=stale, codec=TopK(ratio=0.2)),
                Message(parts=("bias",), synchroniser=Periodic(every=3, outer=OuterOptimizer()), lane=1),
                Message(parts=("table",), codec=Int8(block=4, error_feedback=True), lane=2),
            )
        ),
        "cast with feedback": Strategy(messages=(Message(parts=ALL, codec=Cast(error_feedback=True)),)),
        "top_k with momentum": Strategy(messages=(Message(parts=ALL, codec=TopK(ratio=0.2, momentum=0.9)),)),
    }
    return {
        name: Example(strategy=replace(strategy, overlap=overlap), model=model_of(), cluster=three)
        for name, strategy in strategies.items()
        if name != HANDED_OFF or overlap == "backward"
    }


SAME_NUMBER = {
    (1, 1, 1): (
        HANDED_OFF,
        "all_reduce",
        "int8",
        "cast with feedback",
        "top_k with momentum",
        "power_sgd",
        "server",
        "server, workers update",
        "server, stale",
        "server, stale, int8",
        "sharded",
        "sharded, clipped",
        "periodic",
        "periodic, outer",
        "parts",
        "stale and periodic",
    ),
    (1, 1): ("rows at server, stale",),
    (2, 2): ("hierarchical, equal nodes", "server among workers, proxies"),
    (1, 1, 0): ("server apart", "server apart, stale", "server apart, clipped", "rows at server apart"),
}

QUICK = (1, 1, 1)
# Strategies of it that keep nothing that others of it do not keep.
SLOW = ("all_reduce", "cast with feedback", "server", "server, stale", "sharded", "periodic")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("overlap", ["backward", pytest.param("forward", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("devices", "are_all"), [(QUICK, False), *(pytest.param(one, True, marks=pytest.mark.slow) for one in SAME_NUMBER)]
)
def test_training_goes_on_as_if_it_had_never_stopped(
    devices: tuple[int, ...],
    overlap: Any,
    *,
    are_all: bool,
    make_ranks: Callable[[str], Any],
    serve: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """To the last bit, in other processes, with the same number of ranks. So does it after going back."""
    named = {**examples(overlap), **more_examples(overlap)}
    chosen = {name: named[name] for name in SAME_NUMBER[devices] if name in named and (are_all or name not in SLOW)}
    first = next(iter(chosen.values()))
    bundles = {name: bundle_of(one, tmp_path, f"bundle-{n}") for n, (name, one) in enumerate(chosen.items())}
    folders = {name: str(tmp_path / f"saved-{n}") for n, name in enumerate(chosen)}

    def arguments(name: str, **more: Any) -> dict[str, Any]:
        return {"bundle": bundles[name], "hand_off": name == HANDED_OFF, **more}

    before = Launch(make_ranks("one node"), first, serve).run(
        [("straight", arguments(name, num_steps=WHOLE)) for name in chosen]
        + [("saves", arguments(name, num_steps=HALF, folder=folders[name])) for name in chosen]
    )
    after = Launch(make_ranks("one node"), first, serve).run(
        [("goes_on", arguments(name, num_steps=WHOLE, folder=folders[name])) for name in chosen]
        + [
            ("goes_back", {"bundle": bundles[name], "first": 3, "last": 7, "folder": f"{folders[name]}-back"})
            for name in chosen
        ]
    )
    for rank, (earlier, later) in enumerate(zip(before, after, strict=True)):
        for name, expected, saved, found, back in zip(
            chosen, earlier, earlier[len(chosen) :], later, later[len(chosen) :], strict=False
        ):
            assert isinstance(expected, dict), f"rank {rank}, {name}: {expected}"
            assert (saved, back) == ("", ""), f"rank {rank}, {name}"
            assert found == expected, f"rank {rank}, {name}"


EXACT = {
    "all_reduce": Strategy(messages=(Message(parts=ALL),)),
    "sharded": Strategy(messages=(Message(parts=ALL, synchroniser=Sharded()),)),
    "server": Strategy(messages=(Message(parts=ALL, synchroniser=ParameterServer(server="n0")),)),
    "parts": more_examples("backward")["parts"].strategy,
}


def by_one_process(num_ranks: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Training on all ranks' data, of which there are so many in each step."""
    spec = model_of()
    workload = Workload(model=spec)
    model = WorkloadModel(workload, 0)
    optimizer = workload_optimizer(model, spec)
    for step, count in enumerate(num_ranks):
        for variable in spec.variables:
            parameter = model.get_parameter(variable.name)
            used = parameter.detach().double().numpy()
            gradients = [workload.gradient(variable, rank, step, used).dense for rank in range(count)]
            parameter.grad = torch.from_numpy(sum(gradients) / count).to(parameter.dtype)
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, 2), (1, 1)),
        pytest.param((1, 1), (2, 2), marks=pytest.mark.slow),
        pytest.param((1, 1), (1,), marks=pytest.mark.slow),
        pytest.param((1,), (1, 1), marks=pytest.mark.slow),
    ],
)
def test_other_numbers_of_ranks_and_other_strategies_go_on_exactly(
    before: tuple[int, ...],
    after: tuple[int, ...],
    make_ranks: Callable[[str], Any],
    serve: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Every exact strategy goes on from every other."""
    names = list(EXACT)
    made = {
        (when, name): Example(strategy=EXACT[name], model=model_of(), cluster=cluster_of(*devices))
        for when, devices in (("before", before), ("after", after))
        for name in names
        if name != "parts" or len(devices) > 1
    }
    bundles = {key: bundle_of(one, tmp_path, "-".join(key)) for key, one in made.items()}
    saved = [name for name in names if ("before", name) in made]
    Launch(make_ranks("one node"), made["before", "all_reduce"], serve).run(
        [
            ("saves", {"bundle": bundles["before", name], "num_steps": HALF, "folder": str(tmp_path / name)})
            for name in saved
        ]
    )
    pairs = [(old, new) for old in saved for new in names if ("after", new) in made]
    answers = Launch(make_ranks("one node"), made["after", "all_reduce"], serve).run(
        [
            ("goes_on", {"bundle": bundles["after", new], "num_steps": WHOLE, "folder": str(tmp_path / old)})
            for old, new in pairs
        ]
    )
    expected = by_one_process((sum(before),) * HALF + (sum(after),) * (WHOLE - HALF))
    for rank, given in enumerate(answers):
        for pair, found in zip(pairs, given, strict=True):
            assert isinstance(found, dict), f"rank {rank}, {pair}: {found}"
            for name, value in expected.items():
                tolerance = 1e-5 * (1 + value.norm())
                assert (torch.tensor(found[name]) - value).norm() < tolerance, f"rank {rank}, {pair}: {name}"


OWN = {
    "int8": (Message(parts=ALL, codec=Int8(block=4, error_feedback=True)),),
    "power_sgd": (Message(parts=("table", "linear"), codec=PowerSGD(rank=2)), Message(parts=("bias",))),
    # Saved two steps after an average.
    "periodic": (Message(parts=ALL, synchroniser=Periodic(every=3)),),
    "stale": (Message(parts=ALL, synchroniser=ParameterServer(server="n0", staleness=1)),),
}
KEPT = {"int8": {"residual"}, "power_sgd": {"residual", "right"}, "periodic": set(), "stale": {"master", "incoming"}}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("after", [(1, 1), pytest.param((1,), marks=pytest.mark.slow)])
def test_what_each_worker_has_for_itself_becomes_the_mean(
    after: tuple[int, ...], make_ranks: Callable[[str], Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    """On another number of workers. A single one takes the parameters that were on their way, and keeps nothing."""

    def launched(case: str, devices: tuple[int, ...], **arguments: Any) -> list[list[Any]]:
        made = {
            name: Example(strategy=Strategy(messages=messages), model=model_of(), cluster=cluster_of(*devices))
            for name, messages in OWN.items()
        }
        bundles = {name: bundle_of(one, tmp_path, f"{case}-{name}") for name, one in made.items()}
        return Launch(make_ranks("one node"), made["int8"], serve).run(
            [(case, {"bundle": path, "folder": str(tmp_path / name), **arguments}) for name, path in bundles.items()]
        )

    saved, loaded = launched("saves_held", (1, 1, 1), num_steps=HALF), launched("loads_held", after)
    for name, *answers in zip(OWN, *saved, *loaded, strict=True):
        assert all(isinstance(one, dict) for one in answers), f"{name}: {answers}"
        before, found = answers[: len(saved)], answers[len(saved) :]
        assert before[0] != before[1], f"{name}: each worker has something for itself"
        kinds = {key.partition(" ")[0] for one in found for key in one if " of " in key}
        assert kinds == (KEPT[name] if len(after) > 1 else set()), name
        if len(after) == 1 and name == "stale":
            masters = {key.partition(" of ")[2].partition(",")[0]: key for key in before[0] if key.startswith("master")}
            before = [{**before[0], **{variable: before[0][key] for variable, key in masters.items()}}]
        for rank, one in enumerate(found):
            for key, value in one.items():
                mean = torch.stack([_flat(other[key]) for other in before if key in other]).mean(0)
                assert (_flat(value) - mean).norm() < 1e-6 * (1 + mean.norm()), f"rank {rank}, {name}: {key}"


def _flat(value: Any) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64).flatten()


APART = {
    (1, 1, 1): ("sharded", "server", "parts", "all_reduce"),
    (1, 1, 0): ("server apart", "server apart, clipped"),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("devices", [pytest.param((1, 1, 1), marks=pytest.mark.slow), (1, 1, 0)])
def test_the_optimizers_own_state_dict_goes_round(
    devices: tuple[int, ...], make_ranks: Callable[[str], Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    """`consolidate`, `state_dict` on one rank or on all, `load_state_dict` on all: in the same training, in another."""
    made = {
        f"{name}, {overlap}": {**examples(overlap), **more_examples(overlap)}[name]
        for name in APART[devices]
        for overlap in ("backward", "forward")
    }
    bundles = {name: bundle_of(one, tmp_path, f"bundle-{number}") for number, (name, one) in enumerate(made.items())}
    cases = [("by_state_dicts", {"bundle": path, "first": 3, "last": 6}) for path in bundles.values()]
    answers = Launch(make_ranks("one node"), next(iter(made.values())), serve).run(cases, num_trainings=2)
    first: dict[str, Any] = {}
    for rank, given in enumerate(answers):
        for name, answer in zip(made, given, strict=True):
            assert isinstance(answer, dict), f"rank {rank}, {name}: {answer}"
            refused = [answer.pop(key) for key in list(answer) if key.startswith("refused")]
            if name.startswith("all_reduce"):
                assert set(refused) == {"nothing raised"}
            else:
                assert all("(autosync.consolidate(model) on all workers" in one for one in refused), (name, refused)
                assert len(refused) == (2 if rank == 0 else 3)
            # The whole of it, and the same on all ranks.
            released = answer.pop("released")
            assert released.keys() >= {"0 exp_avg", "2 exp_avg_sq"}
            assert released == first.setdefault(name, released), f"rank {rank}, {name}"
            assert answer == {"in the same": True, "in another": True}, f"rank {rank}, {name}"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("devices", [(1, 1, 1), pytest.param((1, 1, 0), marks=pytest.mark.slow)])
def test_what_is_apart_follows_a_model_that_is_loaded(
    devices: tuple[int, ...], make_ranks: Callable[[str], Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    """Copies at servers, what is on its way, and anchors."""
    at = "n1" if all(devices) else "n2"
    ways = {
        "stale": ParameterServer(server=at, staleness=2),
        "server": ParameterServer(server=at),
        "outer": Periodic(every=2, outer=OuterOptimizer(momentum=0.0)),
        "sharded": Sharded(),
    }
    made = {
        f"{name}, {overlap}": Example(
            strategy=Strategy(messages=(Message(parts=ALL, synchroniser=way),), overlap=overlap),
            model=model_of(optimizer=SGD),
            cluster=cluster_of(*devices),
        )
        for name, way in ways.items()
        if all(devices) or isinstance(way, ParameterServer)
        for overlap in ("backward", "forward")
    }
    bundles = {name: bundle_of(one, tmp_path, f"bundle-{number}") for number, (name, one) in enumerate(made.items())}
    cases = [("loads_a_model", {"bundle": path, "first": 4, "last": 9}) for path in bundles.values()]
    answers = Launch(make_ranks("one node"), next(iter(made.values())), serve).run(cases, num_trainings=2)
    assert answers == [[""] * len(made)] * sum(devices)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rank_that_is_killed_while_it_saves_leaves_a_checkpoint_whole(
    make_ranks: Callable[[str], Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    """Each rank somewhere while it saves; the first one also when the new one is valid and the old one not gone."""
    made = Example(
        strategy=Strategy(messages=(Message(parts=ALL, synchroniser=Sharded(), codec=Cast(error_feedback=True)),)),
        model=model_of(),
        cluster=cluster_of(1, 1),
    )
    bundle = bundle_of(made, tmp_path, "bundle")
    places = {f"{rank} {line}": (rank, line) for rank, line in ((0, 3), (1, 6), (0, 40), (0, 75))}
    for name, (rank, line) in places.items():
        ranks = make_ranks("one node")
        ranks.cluster = made.cluster
        arguments = {"bundle": bundle, "folder": str(tmp_path / name), "rank": rank, "line": line}
        (answers,) = ranks.run([("checkpoint_cases:killed", arguments)])[1 - rank] or [""]
        assert "alive" not in answers, name
        assert read(tmp_path / name).step in {2, 4}, name
    found = Launch(make_ranks("one node"), made, serve).run(
        [("straight", {"bundle": bundle, "num_steps": 7})]
        + [
            ("goes_on_from_what_is_there", {"bundle": bundle, "folder": str(tmp_path / name), "num_steps": 7})
            for name in places
        ]
    )
    for expected, *after in found:
        assert isinstance(expected, dict), expected
        assert after == [expected] * len(places)
