"""Which strategies a study tries: today's default, the presets, then samples of the space."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from autosync.errors import DoesNotApplyError
from autosync.plan.lowering import lower
from autosync.runtime.support import unsupported
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import strategy_id
from autosync.strategy.describe import in_words
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Space

MAX_DRAWS = 1000
"""Draws in a row that bring nothing new before the space counts as exhausted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy to be tried, where it comes from, and its identity. No strategy: torch's own DDP as it ships."""

    origin: str
    strategy: Strategy | None
    strategy_id: str

    @property
    def name(self) -> str:
        """What people call it: samples have nothing but their id."""
        if self.strategy is None:
            return "stock DDP"
        return f"{self.origin} {self.strategy_id[:8]}"

    def in_words(self, model: ModelSpec) -> str:
        """What it does with the variables of a model."""
        return "stock DDP as it ships" if self.strategy is None else in_words(self.strategy, model)


STOCK_DDP = Candidate(origin="baseline:torch_ddp", strategy=None, strategy_id="torch_ddp")


def default_as_strategy(model: ModelSpec, cluster: ClusterSpec) -> Candidate:
    """What stock DDP does, as a strategy."""
    return _candidate("preset:ddp", build_preset("ddp", model, cluster), model, cluster)


def candidates(model: ModelSpec, cluster: ClusterSpec, seed: int) -> Iterator[Candidate]:
    """Stock DDP, the presets that apply, then samples without end (or until nothing new comes).

    Each strategy comes once, and only what is exact and what the engine runs.
    """
    yield STOCK_DDP
    seen: set[str] = set()
    idle = 0
    for origin, strategy in _presets_then_samples(model, cluster, seed):
        candidate = _candidate(origin, strategy, model, cluster)
        is_new = candidate.strategy_id not in seen
        seen.add(candidate.strategy_id)
        if is_new and strategy.is_exact and not unsupported(lower(strategy, model, cluster)):
            idle = 0
            yield candidate
        else:
            idle += 1
            if idle == MAX_DRAWS:
                return


def _presets_then_samples(model: ModelSpec, cluster: ClusterSpec, seed: int) -> Iterator[tuple[str, Strategy]]:
    # Today's default goes first: on some models others come to the same, and it is the name that people know.
    for name in sorted(preset_names(), key=lambda name: name != "ddp"):
        with contextlib.suppress(DoesNotApplyError):
            yield f"preset:{name}", build_preset(name, model, cluster)
    space = Space(model=model, cluster=cluster)
    rng = random.Random(seed)
    while True:
        yield "sampled", space.sample(rng)


def _candidate(origin: str, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Candidate:
    return Candidate(origin=origin, strategy=strategy, strategy_id=strategy_id(strategy, model, cluster))
