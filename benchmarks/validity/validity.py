"""Measures how far the testbed can be trusted: `python benchmarks/validity/validity.py > validity.json`, 20 minutes.

Two studies run on four emulated hosts; docs/validity.md explains the figures:

Messages. 8 MB of gradients without compute are all-reduced in messages of several sizes, on links of several rates and
on links without a limit. Without a limit, all time is processor time. With one, a message should take its time on the
wire, and above some size it does.

Ranking. Random strategies are each measured in slow motion as well: compute takes two and four times as long, on links
half and a quarter as fast, with the same bytes. There the processors' work has less weight in the step. The question is
whether the strategies keep their order; the noise floor is the order of the same trials made twice. All four
measurements of a strategy are consecutive, in random order, so drift affects all of them, and --limit-seconds may
reduce the number of strategies without harm.

`--markdown FILE` prints the tables of an earlier result and measures nothing. `--quick` is a smoke run. Ends with 1 if
fewer than half of the strategies could be measured or no message size can be trusted on the slowest links.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autosync.datasets.schema import seconds_of_steps
from autosync.plan.bundling import bundled
from autosync.search.candidates import candidate
from autosync.search.domain import SpaceDomain
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.model_file import load_model
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Space
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialFailed, TrialService

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import emulated
from benchmarks.shared import parser_of, run, tell

NUM_HOSTS = 4
UNLIMITED_MEGABITS = 100_000
"""A rate that is more than any machine can pass, so effectively no limit."""
NUM_BYTES = 8_000_000
TRUSTED_SHARE = 0.10
DILATIONS = (1, 2, 4)
BUSY_SHARE = 0.6
CLEAR_DIFFERENCE = 0.05
NUM_RESAMPLES = 1000

Floats = npt.NDArray[np.float64]


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="mobilenet_v2@x0.5")
    parser.add_argument("--megabits", type=float, default=1000, help="the links at x1")
    parser.add_argument("--message-megabits", type=float, nargs="+", default=(1000, 500, 250, 125))
    parser.add_argument("--kilobytes", type=int, nargs="+", default=(10, 20, 40, 80, 160, 320, 800, 1600, 4000, 8000))
    parser.add_argument("--count", type=int, default=60, help="random strategies")
    parser.add_argument("--steps", type=int, default=4, help="measured steps of each")
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-seconds", type=float, default=1140.0, help="begin no further strategy after this time")
    parser.add_argument("--quick", action="store_true", help="3 strategies, 3 message sizes, 2 rates, 2 steps")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print the tables of this result")
    options = parser.parse_args()
    if options.markdown:
        print("\n".join(tables(json.loads(options.markdown.read_text(encoding="utf-8")))))
        return 0
    if any(NUM_BYTES % (kilobytes * 1000) for kilobytes in options.kilobytes):
        parser.error(f"messages are even parts of {NUM_BYTES} bytes")
    if options.quick:
        options.count, options.steps, options.warmup_steps = 3, 2, 1
        options.message_megabits, options.kilobytes = (500, 125), (40, 320, 4000)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        messages = study_messages(Path(folder), options)
        ranking = study_ranking(Path(folder), options, began + options.limit_seconds)
    document = {"seconds": round(time.monotonic() - began, 1), "messages": messages, "ranking": ranking}
    print(json.dumps(document, indent=2))
    enough = ranking["num_strategies"] * 2 >= options.count
    return 0 if enough and messages["trusted_from_bytes"][f"{min(options.message_megabits):g}"] is not None else 1


def hosts(megabits: float) -> ClusterSpec:
    """Return a cluster of hosts with equal links, marked as interchangeable."""
    cluster = emulated(*(megabits,) * NUM_HOSTS)
    return replace(cluster, alike=(tuple(node.name for node in cluster.nodes),))


def contestant_of(name: str, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Contestant:
    return Contestant(name=name, bundle=bundled(strategy, model, cluster))


def measured(service: TrialService, contestant: Contestant, options: argparse.Namespace) -> dict[str, float]:
    """Return the median step of one trial, and the share of the processors' time in it."""
    service.prepare(contestant)
    service.run(contestant.name, options.warmup_steps)
    # The first step of a run, on idle links, is not counted.
    samples = service.run(contestant.name, options.steps + 1)
    service.release(contestant.name)
    seconds = seconds_of_steps(samples.step_seconds)[1:]
    return {"seconds": float(np.median(seconds)), "cpu_share": samples.cpu_share}


def study_messages(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the time of a message by its size and the rate of the links, compared with its time on the wire."""
    model = _one_gradient()
    found: dict[str, list[dict[str, float]]] = {}
    for megabits in (UNLIMITED_MEGABITS, *options.message_megabits):
        cluster = hosts(megabits)
        rows: list[dict[str, float]] = []
        with TrialService(
            target=model.name, model=model, cluster=cluster, folder=folder / f"messages-{megabits:g}"
        ) as service:
            for kilobytes in options.kilobytes:
                strategy = _in_messages(kilobytes * 1000)
                row = measured(service, contestant_of(f"{kilobytes} kB", strategy, model, cluster), options)
                num_messages = len(strategy.messages)
                on_wire = 2 * (NUM_HOSTS - 1) / NUM_HOSTS * model.num_bytes / (megabits * 125_000)
                rows.append(
                    {
                        "bytes": kilobytes * 1000,
                        "message_seconds": row["seconds"] / num_messages,
                        "wire_seconds": on_wire / num_messages,
                        "times_the_wire": row["seconds"] / on_wire,
                        "cpu_share": row["cpu_share"],
                    }
                )
                tell(f"{megabits:g} Mbit/s, {kilobytes} kB: {row['seconds'] / on_wire:.2f} times the wire")
        found[f"{megabits:g}"] = rows
    unlimited = found.pop(f"{UNLIMITED_MEGABITS:g}")
    for rows in found.values():
        for row, free in zip(rows, unlimited, strict=True):
            row["share_without_limit"] = free["message_seconds"] / row["message_seconds"]
    return {
        "num_bytes": model.num_bytes,
        "without_limit": unlimited,
        "by_megabits": found,
        "trusted_from_bytes": {megabits: _trusted_from(rows) for megabits, rows in found.items()},
    }


def _one_gradient() -> ModelSpec:
    """Return a model with one large gradient and no compute, so that a step only synchronises the gradient."""
    passing = (Segment(module="", seconds=0.0, variables=("weight",)),)
    return ModelSpec(
        name="one-gradient",
        optimizer=OptimizerSpec(name="SGD"),
        variables=(Variable(name="weight", shape=(NUM_BYTES // 4,), use=0, ready=0),),
        timeline=Timeline(device="cpu", source="computed", forward=passing, backward=passing),
    )


def _in_messages(num_bytes: int) -> Strategy:
    """Return a strategy that all-reduces in messages of that size."""
    sizes = [num_bytes // 4] * (NUM_BYTES // num_bytes)
    if len(sizes) == 1:
        return Strategy(messages=(Message(parts=("weight",)),))
    messages = tuple(Message(parts=(f"weight[{index}]",)) for index in range(len(sizes)))
    return Strategy(partitions={"weight": Partition(sizes=tuple(sizes))}, messages=messages)


def _trusted_from(rows: Sequence[Mapping[str, float]]) -> float | None:
    """Return the smallest size above which all messages take their time on the wire, within a tenth.

    None if there is no such size.
    """
    trusted = None
    for row in sorted(rows, key=lambda row: -row["bytes"]):
        if abs(row["times_the_wire"] - 1) > TRUSTED_SHARE:
            break
        trusted = row["bytes"]
    return trusted


def study_ranking(folder: Path, options: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Measure how well the order of random strategies holds in slow motion."""
    base = load_model(options.model)
    lots = random.Random(options.seed)
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    with contextlib.ExitStack() as stack:
        services = {}
        for factor in DILATIONS:
            model, cluster = base.dilated(factor), hosts(options.megabits / factor)
            service = TrialService(target=model.name, model=model, cluster=cluster, folder=folder / f"x{factor}")
            services[factor] = stack.enter_context(service)
        for name, strategy in _samples(base, services[1].cluster, options):
            if time.monotonic() > deadline:
                break
            try:
                row = _row(name, strategy, services, lots, options)
            except TrialFailed as failure:
                failures.append(f"{name}: {failure.kind}: {failure.message}")
                tell(failures[-1])
                continue
            rows.append(row)
            told = ", ".join(f"{key} {row[key]['seconds'] * 1000:.0f} ms" for key in ("x1", "again", "x2", "x4"))
            tell(f"{len(rows)} of {options.count}: {name}: {told}")
    setting = {"model": base.name, "megabits": options.megabits, "num_strategies": len(rows), "failures": failures}
    return {**setting, **(agreement(rows) if len(rows) > 1 else {}), "strategies": rows}


def _samples(model: ModelSpec, cluster: ClusterSpec, options: argparse.Namespace) -> Iterator[tuple[str, Strategy]]:
    """Yield random strategies that are exact and that the engine runs."""
    domain, rng = SpaceDomain(space=Space(model=model, cluster=cluster)), random.Random(options.seed)
    seen: set[str] = set()
    while len(seen) < options.count:
        one = candidate("sampled", domain.sample(rng), model, cluster)
        if one.strategy is not None and one.strategy_id not in seen and domain.contains(one.strategy):
            seen.add(one.strategy_id)
            yield one.name, one.strategy


def _row(
    name: str,
    strategy: Strategy,
    services: Mapping[int, TrialService],
    lots: random.Random,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Run one strategy's four trials."""
    keys = {"x1": 1, "again": 1, "x2": 2, "x4": 4}
    found: dict[str, dict[str, float]] = {}
    for key in lots.sample(list(keys), len(keys)):
        service = services[keys[key]]
        contestant = contestant_of(name, strategy, service.model, service.cluster)
        found[key] = measured(service, contestant, options)
    num_messages = len(strategy.messages)
    num_bytes = services[1].model.num_bytes
    return {"strategy": name, "num_messages": num_messages, "mean_message_bytes": num_bytes / num_messages, **found}


def agreement(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how similar the orders are, by pairs of speeds, and how busy the processors were."""
    seconds = {key: np.array([row[key]["seconds"] for row in rows]) for key in ("x1", "again", "x2", "x4")}
    shares = {key: np.array([row[key]["cpu_share"] for row in rows]) for key in ("x1", "x2", "x4")}
    calm = shares["x1"] <= BUSY_SHARE
    pairs = {
        "x1 and x1 again": compare_orders(seconds["x1"], seconds["again"]),
        "x1 and x2": compare_orders(seconds["x1"], seconds["x2"]),
        "x1 and x4": compare_orders(seconds["x1"], seconds["x4"]),
        "x2 and x4": compare_orders(seconds["x2"], seconds["x4"]),
    }
    if 3 <= int(calm.sum()) < len(rows):
        pairs["x1 and x4, CPU share of x1 up to 60 %"] = compare_orders(seconds["x1"][calm], seconds["x4"][calm])
    if 3 <= int((~calm).sum()) < len(rows):
        pairs["x1 and x4, CPU share of x1 above 60 %"] = compare_orders(seconds["x1"][~calm], seconds["x4"][~calm])
    return {
        "orders": pairs,
        # 1 if slow motion changes only the speed; above 1 if overhead weighs more at x1.
        "x1_times_4_to_x4": _quantiles(seconds["x1"] * 4 / seconds["x4"]),
        "x2_times_2_to_x4": _quantiles(seconds["x2"] * 2 / seconds["x4"]),
        "cpu_share": {key: {**_quantiles(of), "num_busy": int((of > BUSY_SHARE).sum())} for key, of in shares.items()},
    }


def compare_orders(first: Floats, second: Floats) -> dict[str, Any]:
    """Return rank correlations with 95 % intervals over strategies, and the cost of following the first order."""
    everybody = np.arange(len(first))
    rng = np.random.default_rng(0)
    resampled = [rng.integers(len(first), size=len(first)) for _ in range(NUM_RESAMPLES)]
    taus = np.array([_kendall(first, second, chosen) for chosen in resampled])
    low, high = np.nanquantile(taus, [0.025, 0.975])
    ranks = np.corrcoef(_ranks(first), _ranks(second))
    # If two hardly differ, any order is right.
    apart = np.abs(np.log(second[:, None] / second[None, :])) > np.log(1 + CLEAR_DIFFERENCE)
    same = np.sign(first[:, None] - first[None, :]) == np.sign(second[:, None] - second[None, :])
    return {
        "num_strategies": len(first),
        "kendall": _kendall(first, second, everybody),
        "low": float(low),
        "high": float(high),
        "spearman": float(ranks[0, 1]),
        "clear_pairs": int(apart.sum()) // 2,
        "clear_pairs_agreeing": float(same[apart].mean()) if apart.any() else None,
        "winner_costs": float(second[int(np.argmin(first))] / second.min() - 1),
    }


def _kendall(first: Floats, second: Floats, chosen: npt.NDArray[np.int64]) -> float:
    """Return Kendall's tau of the chosen strategies. A resample may choose one twice; such pairs do not count."""
    left, right = np.triu_indices(len(chosen), 1)
    left, right = chosen[left], chosen[right]
    others = left != right
    left, right = left[others], right[others]
    if not len(left):
        return float("nan")
    return float(np.mean(np.sign(first[left] - first[right]) * np.sign(second[left] - second[right])))


def _ranks(values: Floats) -> npt.NDArray[np.int64]:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable")


def _quantiles(values: Floats) -> dict[str, float]:
    low, median, high = np.quantile(values, [0.1, 0.5, 0.9])
    return {"percentile_10": float(low), "median": float(median), "percentile_90": float(high)}


def tables(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of docs/validity.md."""
    yield from _message_table(document["messages"])
    yield ""
    yield from _order_table(document["ranking"])


def _message_table(messages: Mapping[str, Any]) -> Iterator[str]:
    rates = list(messages["by_megabits"])
    yield "| message | no limit | " + " | ".join(f"{rate} Mbit/s" for rate in rates) + " |"
    yield "|---|---|" + "---|" * len(rates)
    for index, free in enumerate(messages["without_limit"]):
        cells = [_message_cell(messages["by_megabits"][rate][index]) for rate in rates]
        yield f"| {free['bytes'] / 1000:g} kB | {free['message_seconds'] * 1000:.2f} ms | " + " | ".join(cells) + " |"
    trusted = [messages["trusted_from_bytes"][rate] for rate in rates]
    sizes = ["none" if size is None else f"{size / 1000:g} kB" for size in trusted]
    yield "| trusted from | | " + " | ".join(sizes) + " |"


def _message_cell(row: Mapping[str, float]) -> str:
    return f"{row['times_the_wire']:.2f} ({row['share_without_limit']:.0%}, {row['cpu_share']:.0%})"


def _order_table(ranking: Mapping[str, Any]) -> Iterator[str]:
    yield "| orders of | strategies | Kendall's tau | 95 % interval | Spearman | clear pairs alike | first costs |"
    yield "|---|---|---|---|---|---|---|"
    for name, one in ranking["orders"].items():
        alike = "" if one["clear_pairs_agreeing"] is None else f"{one['clear_pairs_agreeing']:.1%}"
        yield (
            f"| {name} | {one['num_strategies']} | {one['kendall']:.3f} | {one['low']:.3f} to {one['high']:.3f} | "
            f"{one['spearman']:.3f} | {alike} of {one['clear_pairs']} | {one['winner_costs']:.1%} |"
        )
    yield ""
    yield "| speed | CPU share, median | 10 % to 90 % of strategies | above 60 % |"
    yield "|---|---|---|---|"
    for key, one in ranking["cpu_share"].items():
        spread = f"{one['percentile_10']:.0%} to {one['percentile_90']:.0%}"
        yield f"| {key} | {one['median']:.0%} | {spread} | {one['num_busy']} of {ranking['num_strategies']} |"


if __name__ == "__main__":
    run(main)
