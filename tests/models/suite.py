"""Real models under stock DDP and under six strategies each: `python suite.py [--ranks N] [MODEL ...]`.

Standard output is one JSON document: for every model and strategy how far its parameters are from stock DDP's, how far
they may be, and the verdict. It exits with 1 if a verdict is neither `within` nor `does not apply`.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ["HF_HUB_OFFLINE"] = "1"

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# A script's own folder is not on the path under PYTHONSAFEPATH.
sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch._dynamo  # DDP and optimizers import it late, so that each rank would do so
from habits import HABITS
from measure import distance, worst_tensor
from runs import run_ranks
from strategies import LOSSY, Named, cluster_of, sampled, strategies_of, training_of
from training import NUM_STEPS, WHOLE_STEPS, Bundled, Stock, Trained, Training, Way, train
from zoo import ENTRIES, Entry, declare_operators

from autosync.errors import DoesNotApplyError
from autosync.plan.bundling import bundled
from autosync.specs.model import ModelSpec
from autosync.specs.profile.run import profile
from autosync.strategy.bundle import Bundle

NUM_ROUNDED = 3
"""Runs of stock DDP whose gradients are rounded otherwise, by chance."""


class Failed(Exception):  # noqa: N818 - a verdict
    """A run gave no values; the reason is the message."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="by default all whose libraries are here")
    parser.add_argument("--ranks", type=int, default=2, metavar="N")
    parser.add_argument("--also-lossy", action="store_true", help="try a lossy strategy too, which is too far off")
    parser.add_argument("--sampled", type=int, default=1, metavar="N", help="sampled strategies a model; one")
    arguments = parser.parse_args()
    declare_operators()
    known = {entry.name: entry for entry in (*ENTRIES, *HABITS)}
    entries = [known[name] for name in arguments.models or known]
    missing: dict[str, str] = {}
    rows = []
    for entry in entries:
        if why := _why_missing(entry):
            missing[entry.library] = why
            continue
        began = time.monotonic()
        more = [sampled(number) for number in range(2, arguments.sampled + 1)]
        tried = (*strategies_of(entry), *more, *([LOSSY] if arguments.also_lossy else []))
        rows.extend(Compared(entry, arguments.ranks).rows(tried))
        _tell(f"{entry.name}: {time.monotonic() - began:.0f} s")
    table = {"ranks": arguments.ranks, "torch": torch.__version__, "missing": missing, "rows": rows}
    sys.stdout.write(json.dumps(table, indent=1) + "\n")
    return 0 if all(row["verdict"] in {"within", "does not apply"} for row in rows) else 1


def _why_missing(entry: Entry) -> str:
    """Why a model's library cannot be imported, if so. What can be is imported before ranks are forked."""
    try:
        importlib.import_module(entry.library)
    except ImportError as error:
        return str(error)
    entry.model()
    return ""


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Compared:
    """One model under all its strategies. What stock DDP makes of each training is found once."""

    def __init__(self, entry: Entry, num_ranks: int) -> None:
        self._entry = entry
        self._num_ranks = num_ranks
        self._stock: dict[str, dict[str, Any]] = {}

    def rows(self, tried: Sequence[Named]) -> list[dict[str, Any]]:
        """The model's rows of the table."""
        rows = []
        for named in tried:
            rows.append(self._row(named))
            _tell(f"{self._entry.name}, {named.name}: {rows[-1]['verdict']}")
        return rows

    def _row(self, named: Named) -> dict[str, Any]:
        training = training_of(named, self._entry)
        row: dict[str, Any] = {"model": self._entry.name, "strategy": named.name, "training": training.name}
        try:
            if training.name not in self._stock:
                self._stock[training.name] = self._measured_stock(training)
            stock = self._stock[training.name]
            bundle = self._bundle(named, stock["model spec"])
            if isinstance(bundle, str):
                return row | {"verdict": "does not apply", "why": bundle}
            trained = self._run(training, lambda: [Bundled(bundle, hand_off=True)])[0]
        except Failed as failed:
            return row | {"verdict": "failed", "why": str(failed)}
        row["steps"] = compared = [_compared(steps, trained, stock) for steps in (1, NUM_STEPS)]
        is_within = all(each["distance"] <= each["allowed"] for each in compared)
        row["same bits as stock"] = trained.digest() in {each.digest() for each in _all_runs(stock)}
        return row | {"verdict": "within" if is_within else "too far"}

    def _measured_stock(self, training: Training) -> dict[str, Any]:
        """Stock DDP's runs, and the model's spec, which does not depend on them."""

        def ways() -> list[Way]:
            key = "shuffle" if training is WHOLE_STEPS else "nudge"
            rounded = [Stock(25, **{key: seed}) for seed in range(NUM_ROUNDED)]
            if training.clip_norm is not None:
                rounded.append(Stock(25, exact_norm=True))
            if self._num_ranks > 2:
                rounded += [Stock(25, turn=turn) for turn in range(1, self._num_ranks)]
                rounded.append(Stock(25, divides_sum=True))
            if self._entry.is_compiled:
                rounded.append(Stock(25, compiles=False))
            return [Stock(25), Stock(1), *rounded]

        reference, other, *others = self._run(training, ways)
        return {"reference": reference, "buckets": [other], "rounding": others, "model spec": self._profiled(training)}

    def _profiled(self, training: Training) -> ModelSpec:
        def function() -> ModelSpec:
            return profile(training.task(self._entry), steps=3)

        return _checked(run_ranks(1, function))[0]

    def _bundle(self, named: Named, model: ModelSpec) -> Bundle | str:
        """The strategy's bundle for the model; why there is none, if there is none."""
        cluster = cluster_of(self._num_ranks)
        try:
            return bundled(named.build(model, cluster), model, cluster)
        except DoesNotApplyError as error:
            return str(error)

    def _run(self, training: Training, ways: Callable[[], Sequence[Way]]) -> list[Trained]:
        """What the first rank has after each way; all others have the same."""

        def function() -> list[Trained]:
            return [train(self._entry, training, way) for way in ways()]

        first, *others = _checked(run_ranks(self._num_ranks, function))
        for number, trained in enumerate(first):
            if any(other[number].digest() != trained.digest() for other in others):
                raise Failed("the ranks' parameters are not the same")
            if any(other[number].norms != trained.norms for other in others):
                raise Failed("the ranks clip by different norms")
            if training.clip_norm is not None and min(trained.norms) <= training.clip_norm:
                raise Failed(f"a step does not clip: its gradient has the norm {min(trained.norms)}")
        return first


def _all_runs(stock: dict[str, Any]) -> list[Trained]:
    return [stock["reference"], *stock["buckets"], *stock["rounding"]]


def _compared(steps: int, trained: Trained, stock: dict[str, Any]) -> dict[str, Any]:
    """How far the parameters are from stock DDP's after so many steps, and how far they may be."""
    start, reference = (stock["reference"].values[number] for number in (0, steps))
    uncertain = {
        key: max(distance(each.values[steps], reference, start) for each in stock[key])
        for key in ("buckets", "rounding")
    }
    worst, worst_distance = worst_tensor(trained.values[steps], reference, start)
    return {
        "after": steps,
        "distance": distance(trained.values[steps], reference, start),
        "allowed": 2 * max(uncertain.values()),
        **uncertain,
        "worst tensor": worst,
        "its distance": worst_distance,
    }


def _checked(answers: Sequence[Any]) -> list[Any]:
    wrong = [f"rank {rank}: {answer}" for rank, answer in enumerate(answers) if isinstance(answer, str)]
    if wrong:
        raise Failed("; ".join(wrong))
    return list(answers)


if __name__ == "__main__":
    sys.exit(main())
