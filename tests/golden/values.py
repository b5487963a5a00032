"""What must not move when code does: identities, plans and predictions, as short lines of text.

    python -m tests.golden.values [FILE ...]     # writes them anew; say in the commit how many lines moved, and why

`presets-*.txt` has a file for each shipped model: a line for each preset on each shipped cluster, on its own backend
and on NCCL, with the ids of strategy and plan or the rule that refuses it. `samples.txt` has 1,000 random strategies
over all models and clusters: ids and a hash of the whole plan. `predictions.txt` has what each simulator predicts of
200 of them (of the small plans). `ranker.txt` has the order in which the shipped ranker puts samples of six targets.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from autosync import jsonio
from autosync.documents import to_plain
from autosync.errors import DoesNotApplyError
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.plan.types import Local, Plan
from autosync.simulators.catalogue import open_simulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, shipped_clusters
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model, shipped_models
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Limits, Space

FOLDER = Path(__file__).parent
NUM_SAMPLES = 1000
NUM_PREDICTED = 200
MOST_OPERATIONS = 400
NUM_RANKED = 40
RANKED = (
    ("resnet18", "4-hosts"),
    ("bert_tiny", "8-hosts-slow-links"),
    ("moe", "4-hosts-2-racks"),
    ("ncf_small", "4-hosts-2-servers"),
    ("vit_mini", "6-hosts-3-speeds"),
    ("squeezenet", "2-hosts-2-ranks"),
)
LATER = ("4-hosts-uneven", "5-hosts-2-racks", "5-hosts-slow-uplink", "6-hosts-3-racks")
"""Shipped clusters that are younger than the samples, which are not drawn over them."""
_SIMULATORS = ("analytical", "timeline", "learned")
_LIMITS = (Limits(stages=False), Limits(allow=("lossy", "stale"), stages=False))
"""In turn: what is exact, and all that there is, without stages."""


def clusters() -> Iterator[tuple[str, ClusterSpec]]:
    """The shipped clusters by name, and the same on NCCL."""
    for name in shipped_clusters():
        cluster = load_cluster(name)
        yield name, cluster
        if cluster.backend != "nccl":
            yield f"{name}/nccl", replace(cluster, backend="nccl")


def preset_lines(model_name: str) -> Iterator[str]:
    """The presets of a model."""
    model = load_model(model_name)
    for cluster_name, cluster in clusters():
        for preset in preset_names():
            yield f"{cluster_name} {preset} {_ids(preset, model, cluster)}"


def _ids(preset: str, model: ModelSpec, cluster: ClusterSpec) -> str:
    try:
        strategy = build_preset(preset, model, cluster)
    except DoesNotApplyError as error:
        return f"refused: {error.problems[0].rule}"
    return f"{strategy_id(strategy, model, cluster)[:12]} {plan_id(lower(strategy, model, cluster), cluster)[:12]}"


def sample_lines(numbers: Iterable[int] = range(NUM_SAMPLES)) -> Iterator[str]:
    """Random strategies by their numbers."""
    for number in numbers:
        drawn = _draw(number)
        plan = lower(drawn.strategy, drawn.model, drawn.cluster)
        ids = strategy_id(drawn.strategy, drawn.model, drawn.cluster)[:12], plan_id(plan, drawn.cluster)[:12]
        yield f"{number} {drawn.where} {' '.join(ids)} {jsonio.content_hash(_plain(plan))[:12]}"


def _plain(plan: Plan) -> object:
    """A plan as plain values; local operations with equal shards look as they did before shards had weights."""
    operations = [one[:-1] if isinstance(one, Local) and not one.weights else one for one in plan.operations]
    return {**to_plain(replace(plan, operations=())), "operations": to_plain(operations)}


def prediction_lines(numbers: Iterable[int] = range(NUM_SAMPLES)) -> Iterator[str]:
    """What all simulators say of the first samples of few operations: all digits that there are."""
    small = (number for number in numbers if _num_operations(_draw(number)) <= MOST_OPERATIONS)
    for number in itertools.islice(small, NUM_PREDICTED):
        drawn = _draw(number)
        found = []
        for name in _SIMULATORS:
            (prediction,) = open_simulator(name, drawn.model, drawn.cluster).predict([drawn.strategy])
            found.append(f"{prediction.seconds!r}~{prediction.spread!r}")
        yield f"{number} {drawn.where} {' '.join(found)}"


class _Drawn(NamedTuple):
    model: ModelSpec
    cluster: ClusterSpec
    where: str
    strategy: Strategy


def _draw(number: int) -> _Drawn:
    """A sample by its number: a draw of its own."""
    rng = random.Random(number)
    model_name = rng.choice(list(shipped_models()))
    cluster_name, cluster = rng.choice([one for one in clusters() if one[0].partition("/")[0] not in LATER])
    model = load_model(model_name)
    strategy = Space(model=model, cluster=cluster, limits=_LIMITS[number % 2]).sample(rng)
    return _Drawn(model, cluster, f"{model_name} {cluster_name}", strategy)


def _num_operations(drawn: _Drawn) -> int:
    return len(lower(drawn.strategy, drawn.model, drawn.cluster).operations)


def ranker_lines() -> Iterator[str]:
    """Each target's samples from the fastest to the slowest, as the shipped ranker has them."""
    for model_name, cluster_name in RANKED:
        model, cluster = load_model(model_name), load_cluster(cluster_name)
        space, rng = Space(model=model, cluster=cluster, limits=_LIMITS[0]), random.Random(1)
        strategies = [space.sample(rng) for _ in range(NUM_RANKED)]
        predictions = open_simulator("learned", model, cluster).predict(strategies)
        order = sorted(range(NUM_RANKED), key=lambda number: predictions[number].seconds)
        yield f"{model_name} {cluster_name} {' '.join(map(str, order))}"


def files() -> Iterator[tuple[Path, Iterator[str]]]:
    """Every file, and how its lines are made."""
    for name in shipped_models():
        yield FOLDER / f"presets-{name}.txt", preset_lines(name)
    yield FOLDER / "samples.txt", sample_lines()
    yield FOLDER / "predictions.txt", prediction_lines()
    yield FOLDER / "ranker.txt", ranker_lines()


def main() -> None:
    chosen = sys.argv[1:]
    for path, lines in files():
        if chosen and path.stem not in chosen:
            continue
        sys.stderr.write(f"{path.name}\n")
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
