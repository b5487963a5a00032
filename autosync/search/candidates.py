"""Which strategies a study tries: today's default, the presets, then samples of the space."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from autosync.errors import DoesNotApplyError
from autosync.plan.lowering import lower
from autosync.runtime.support import unsupported
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import strategy_id
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


STOCK_DDP = Candidate(origin="baseline:torch_ddp", strategy=None, strategy_id="torch_ddp")


def default_as_strategy(model: ModelSpec, cluster: ClusterSpec) -> Candidate:
    """What stock DDP does, as a strategy."""
    return _candidate("preset:ddp", build_preset("ddp", model, cluster), model, cluster)


def candidates(model: ModelSpec, cluster: ClusterSpec, seed: int) -> Iterator[Candidate]:
    """Stock DDP, the presets that apply, then samples without end (or until nothing new comes); each strategy once."""
    yield STOCK_DDP
    seen: set[str] = set()
    for candidate in _presets_then_samples(model, cluster, seed):
        if candidate.strategy_id not in seen:
            seen.add(candidate.strategy_id)
            yield candidate


def _presets_then_samples(model: ModelSpec, cluster: ClusterSpec, seed: int) -> Iterator[Candidate]:
    for name in preset_names():
        try:
            strategy = build_preset(name, model, cluster)
        except DoesNotApplyError:
            continue
        if _runs(strategy, model, cluster):
            yield _candidate(f"preset:{name}", strategy, model, cluster)
    space = Space(model=model, cluster=cluster)
    rng = random.Random(seed)
    drawn: set[str] = set()
    idle = 0
    while idle < MAX_DRAWS:
        strategy = space.sample(rng)
        candidate = _candidate("sampled", strategy, model, cluster)
        idle += 1
        if candidate.strategy_id not in drawn and _runs(strategy, model, cluster):
            drawn.add(candidate.strategy_id)
            idle = 0
            yield candidate


def _candidate(origin: str, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Candidate:
    return Candidate(origin=origin, strategy=strategy, strategy_id=strategy_id(strategy, model, cluster))


def _runs(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> bool:
    """Whether the engine runs a strategy: what it would refuse is no candidate."""
    return strategy.is_exact and not unsupported(lower(strategy, model, cluster))
