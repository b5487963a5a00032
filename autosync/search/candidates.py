"""Candidates: strategies that may be tried, with their origins and names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autosync.datasets.schema import Record
from autosync.documents import without_file
from autosync.errors import DoesNotApplyError
from autosync.simulators.interface import Simulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import strategy_id
from autosync.strategy.describe import in_words
from autosync.strategy.files import parse_strategy
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.representation import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy to be tried, its origin and its identity. Without a strategy it stands for stock DDP as it ships."""

    origin: str
    strategy: Strategy | None
    strategy_id: str

    @property
    def has_stages(self) -> bool:
        """Whether it divides the model."""
        return self.strategy is not None and bool(self.strategy.stages)

    @property
    def name(self) -> str:
        """The name that users see: the origin and the start of the id, and for inexact strategies also the classes."""
        if self.strategy is None:
            return "stock DDP"
        classes = "" if self.strategy.is_exact else f" ({', '.join(sorted(self.strategy.classes))})"
        return f"{self.origin} {self.strategy_id[:8]}{classes}"

    def in_words(self, model: ModelSpec) -> str:
        """Describe what this candidate does with the variables of a model."""
        return "stock DDP as it ships" if self.strategy is None else in_words(self.strategy, model)


STOCK_DDP = Candidate(origin="baseline:torch_ddp", strategy=None, strategy_id="torch_ddp")


def candidate(origin: str, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Candidate:
    """Return a strategy as a candidate."""
    return Candidate(origin=origin, strategy=strategy, strategy_id=strategy_id(strategy, model, cluster))


def default_as_strategy(model: ModelSpec, cluster: ClusterSpec) -> Candidate:
    """Return the strategy that does what stock DDP does."""
    return candidate("preset:ddp", build_preset("ddp", model, cluster), model, cluster)


def known_candidates(
    model: ModelSpec, cluster: ClusterSpec, contains: Callable[[Strategy], bool]
) -> Iterator[Candidate]:
    """Yield the presets that apply and that a domain contains, each strategy once."""
    seen: set[str] = set()
    # DDP's preset goes first: on some models other presets are the same strategy, and users know the name `ddp`.
    for name in sorted(preset_names(), key=lambda name: name != "ddp"):
        with contextlib.suppress(DoesNotApplyError):
            found = candidate(f"preset:{name}", build_preset(name, model, cluster), model, cluster)
            assert found.strategy is not None, "a preset is a strategy"
            if found.strategy_id not in seen and contains(found.strategy):
                seen.add(found.strategy_id)
                yield found


def by_prediction(candidates: Sequence[Candidate], simulator: Simulator) -> list[Candidate]:
    """Return the candidates that have a strategy, the fastest by prediction first."""
    ours = [(one, one.strategy) for one in candidates if one.strategy is not None]
    predictions = simulator.predict([strategy for _, strategy in ours]) if ours else []
    order = sorted(range(len(ours)), key=lambda position: predictions[position].seconds)
    return [ours[position][0] for position in order]


def candidate_of(record: Record) -> Candidate:
    """Return the candidate of a record's trial."""
    if record.strategy is None:
        # The origin names torch's baseline.
        return Candidate(origin=record.origin, strategy=None, strategy_id=record.origin.rpartition(":")[2])
    assert record.strategy_id is not None, "a strategy of ours has an id"
    return Candidate(origin=record.origin, strategy=strategy_of(record), strategy_id=record.strategy_id)


def strategy_of(record: Record) -> Strategy:
    """Return the strategy that a record holds."""
    assert record.strategy is not None, "asked of strategies of ours"
    return parse_strategy(without_file(dict(record.strategy)))
