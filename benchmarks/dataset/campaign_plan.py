"""The plan file of a campaign: its models and clusters, and how often and how long each is measured.

    schema: autosync.campaign/1
    name: first
    groups:
      - {models: [gpt_mini, moe], clusters: [2-hosts, 4-hosts], records: 60}

All other fields have defaults. docs/dataset.md describes the fields.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from autosync import documents
from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.schema import PlanFacts
from autosync.documents import STRICT
from autosync.errors import DocumentError, InputError, Problem, first_problems
from autosync.errors import Path as ValuePath
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.cost_profiles import cost_profile
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model, split_dilation
from autosync.strategy.space import Limits
from autosync.trials.policy import Policy

T = TypeVar("T")

SCHEMA_KIND = "campaign"
SCHEMA_VERSION = 1

Source = Literal["sampled", "treed", "divided", "mutated", "crossed", "neighbour"]
"""The sources of strategies after the presets: the space, its strategies with trees, its strategies that divide the
model into stages, a change of a good strategy, two good strategies crossed, or one or two changes of the best."""

MIX: Mapping[Source, int] = {"sampled": 6, "mutated": 2, "crossed": 1, "neighbour": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Each of these models on each of these clusters, with the number of records and the sources of strategies.

    In the end, `again` of its fastest random strategies are measured again, because the fastest of many short trials is
    partly the luckiest. For a combination in several groups, the last group counts.
    """

    __pydantic_config__ = STRICT

    models: tuple[str, ...]
    clusters: tuple[str, ...]
    records: int
    mix: Mapping[Source, int] | None = None
    again: int = 0

    def __post_init__(self) -> None:
        if not self.models or not self.clusters:
            raise ValueError("a group without a combination (at least one model and one cluster)")
        if self.records < 1:
            raise ValueError(f"{self.records} records (1 or more)")
        if self.again < 0:
            raise ValueError(f"{self.again} strategies measured again (0 or more)")
        if self.mix is not None:
            check_mix(self.mix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The rules for strategies that are not measured, based on their plans.

    Stock DDP and the reference are always measured. A strategy is left out if its busiest link alone needs more than
    `slowest` times the step of `ddp` (compute plus wire time), because it is hopeless and would take too much time. It
    is also left out if its messages and bytes need more than the share `busy` of the processors while the busiest link
    or compute is busy: on a testbed all ranks share the machine, so the trial would measure the processors and not the
    network.
    """

    __pydantic_config__ = STRICT

    slowest: float = 6.0
    busy: float = 0.5

    def __post_init__(self) -> None:
        if self.slowest < 1 or self.busy <= 0:
            raise ValueError("slowest is a factor of 1 or more, busy a share above 0")

    def keeps_out(self, facts: PlanFacts, *, compute_seconds: float, slowest_seconds: float) -> bool:
        """Return whether a plan is not measured. `slowest_seconds` is the most that its busiest link may need."""
        available_seconds = (os.cpu_count() or 1) * max(facts.wire_seconds, compute_seconds)
        is_busy = _processor_seconds(facts) > self.busy * available_seconds
        return is_busy or facts.wire_seconds > slowest_seconds


def _processor_seconds(facts: PlanFacts) -> float:
    """Return the processor time of a plan's messages and bytes, by the timeline's figures."""
    costs = cost_profile("gloo-cpu").costs.processor
    num_own = facts.num_sends - facts.num_native_sends
    messages = num_own * costs.of_message(native=False) + facts.num_native_sends * costs.of_message(native=True)
    return messages + facts.sent_bytes * costs.per_byte[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """How long a strategy is measured: the fields with these names in `autosync.trials.policy.Policy`."""

    __pydantic_config__ = STRICT

    min_warmup_steps: int = 4
    max_warmup_steps: int = 12
    window_steps: int = 4
    min_steps: int = 8
    max_steps: int = 24
    steps_per_run: int = 6
    interval_share: float = 0.04
    budget_seconds: float = 8.0
    give_up_factor: float = 10.0

    def __post_init__(self) -> None:
        self.policy()

    def policy(self) -> Policy:
        """Return these fields as a policy; raise if they are invalid."""
        return Policy(**{name: getattr(self, name) for name in self.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """When the machine counts as busy: other programs use more than `max_other_cpu` of its processor time.

    The campaign then waits, and gives up after `patience_seconds`. `max_drift` is the largest distance of the reference
    from its usual times, as a share of them.
    """

    __pydantic_config__ = STRICT

    max_other_cpu: float = 0.08
    patience_seconds: float = 900.0
    max_drift: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.max_other_cpu <= 1 or self.patience_seconds < 0 or self.max_drift <= 0:
            raise ValueError("max_other_cpu is a share, patience_seconds 0 or more, max_drift above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A plan file. `visit_trials` is the number of trials of a combination before the next one's turn."""

    __pydantic_config__ = STRICT

    name: str
    groups: tuple[Group, ...]
    seed: int = 0
    mix: Mapping[Source, int] = field(default_factory=lambda: dict(MIX))
    visit_trials: int = 25
    reference_every: int = 50
    timeout_seconds: float = 60.0
    limits: Limits = field(default_factory=Limits)
    screen: Screen = field(default_factory=Screen)
    steps: Steps = field(default_factory=Steps)
    quiet: Quiet = field(default_factory=Quiet)

    def __post_init__(self) -> None:
        if not self.name or Path(self.name).name != self.name or self.name.startswith("."):
            raise ValueError(f"{self.name!r} is no name of a campaign (without slashes, starting with no dot)")
        if not self.groups:
            raise ValueError("the campaign has no groups (at least one)")
        if self.visit_trials < 1 or self.reference_every < 1 or self.timeout_seconds <= 0:
            raise ValueError("visit_trials and reference_every are 1 or more, timeout_seconds above 0")
        check_mix(self.mix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """A model on a cluster, with the number of its records; `key` has the hashes of their specs.

    `num_again` strategies are measured again once these records exist.
    """

    target: str
    key: tuple[str, str]
    model: ModelSpec
    cluster: ClusterSpec
    dilation: float
    num_records: int
    mix: Mapping[Source, int]
    num_again: int = 0

    @property
    def name(self) -> str:
        return f"{self.model.name}:{self.cluster.name}"


def check_mix(mix: Mapping[Source, int]) -> None:
    """Refuse an empty mix."""
    if any(share < 0 for share in mix.values()) or not sum(mix.values()):
        raise ValueError("a mix has shares of 0 or more, one of them above 0")


def load_campaign(path: Path | str) -> tuple[Campaign, tuple[Combination, ...]]:
    """Return the campaign of a plan file and its combinations; raise if a model or cluster is missing."""
    campaign, document = documents.load(path, kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=Campaign)
    problems: list[Problem] = []
    found = list(_combinations(campaign, problems))
    if problems:
        placed = [problem if problem.file else document.locate(problem) for problem in problems]
        raise DocumentError(first_problems(placed))
    # The last combination of a name counts, at the position of the first.
    return campaign, tuple({one.name: one for one in found}.values())


def _combinations(campaign: Campaign, problems: list[Problem]) -> Iterator[Combination]:
    models: dict[str, tuple[ModelSpec, str]] = {}
    clusters: dict[str, tuple[ClusterSpec, str]] = {}
    for position, group in enumerate(campaign.groups):
        problems += _look_up(group.models, models, _model, ("groups", position, "models"))
        problems += _look_up(group.clusters, clusters, _cluster, ("groups", position, "clusters"))
        for target, name in itertools.product(group.models, group.clusters):
            if target in models and name in clusters:
                model, model_key = models[target]
                cluster, cluster_key = clusters[name]
                yield Combination(
                    target=target,
                    key=(model_key, cluster_key),
                    model=model,
                    cluster=cluster,
                    dilation=split_dilation(target)[1] or 1.0,
                    num_records=group.records,
                    mix=group.mix or campaign.mix,
                    num_again=group.again,
                )


def _model(name: str) -> tuple[ModelSpec, str]:
    model = load_model(name)
    return model, model_spec(model).spec_id


def _cluster(name: str) -> tuple[ClusterSpec, str]:
    cluster = load_cluster(name)
    return cluster, cluster_spec(cluster).spec_id


def _look_up(names: Sequence[str], known: dict[str, T], load: Callable[[str], T], path: ValuePath) -> Iterator[Problem]:
    """Load what is not known yet. Yield each problem with its place in the plan, unless it is in a file."""
    for index, name in enumerate(names):
        if name not in known:
            try:
                known[name] = load(name)
            except InputError as error:
                for problem in error.problems:
                    yield problem if problem.file else replace(problem, path=(*path, index))
