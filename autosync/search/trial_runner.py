"""Runs trials: it turns a candidate into a contestant of the trial service, and the outcome into a record."""

from __future__ import annotations

import datetime as dt
import functools
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.schema import Failure, Flag, Measurement, Record
from autosync.plan.bound import bound
from autosync.plan.bound_terms import Bound, rates_of
from autosync.plan.stage_bound import stage_bound
from autosync.search.candidates import Candidate
from autosync.search.measurement_effort import Effort
from autosync.search.prepared_trial import PreparedTrial, TrialPreparer
from autosync.search.target import Target
from autosync.specs.background_load import BUSY_SHARE
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.bundle import Bundle
from autosync.strategy.emit.ddp import settings_for, why_not_ddp
from autosync.strategy.emit.settings import DdpSettings, as_it_ships
from autosync.strategy.files import dump_strategy
from autosync.strategy.stage_compute import strategy_compute_seconds
from autosync.trials.contestant import Contestant
from autosync.trials.failures import Blame
from autosync.trials.policy import Policy, measure
from autosync.trials.samples import Service
from autosync.trials.service import StepSamples, TrialFailed


class ComparingService(Service, Protocol):
    """The trial service that tuning needs.

    It also reports losses, the difference between two contestants, and the timeline of one with `trace`.
    """

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples: ...
    def difference(self, first: str, second: str) -> float: ...
    def timeline(self, name: str) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTrial:
    """The record of a trial that has run, and the side that may have caused its failure; None if it was measured."""

    record: Record
    blame: Blame | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRunner:
    """Runs the trials of a study, with the settings that they share.

    `target` is the engine that runs strategies: ours, or stock DDP with the settings that express them. With
    `is_recorded` nothing runs, and trials take their outcomes from records. `dilation` is the factor by which replayed
    compute is slower than recorded. `others_share` returns the share of this machine's processor time that other
    programs used since its last call; None if ranks run elsewhere. Above `max_other_cpu` the machine counts as busy.
    With `searches_stages`, strategies with stages are among those to try.
    """

    study: str
    service: ComparingService
    preparer: TrialPreparer
    is_replayed: bool
    effort: Effort
    target: Target = "autosync"
    is_recorded: bool = False
    dilation: float = 1.0
    others_share: Callable[[], float] | None = None
    max_other_cpu: float = BUSY_SHARE
    searches_stages: bool = False

    @property
    def model(self) -> ModelSpec:
        return self.preparer.model

    @property
    def cluster(self) -> ClusterSpec:
        return self.preparer.cluster

    def bundle(self, candidate: Candidate) -> Bundle | None:
        """Return the candidate as a bundle; None for stock DDP as it ships."""
        return self.preparer.prepare(candidate).bundle

    def contestant(self, candidate: Candidate) -> Contestant:
        """Return the candidate as a contestant."""
        if candidate.strategy is None or (self.target == "ddp" and not self.is_recorded):
            return Contestant(name=candidate.name, ddp=self.ddp_settings(candidate))
        return Contestant(name=candidate.name, bundle=self.bundle(candidate))

    def ddp_settings(self, candidate: Candidate, *, gradient_as_bucket_view: bool = True) -> DdpSettings:
        """Return the settings of stock DDP as it ships, or the settings that express the candidate's strategy.

        If steps use different parameters, DDP may fill buckets with these caps in another order than the strategy's.
        """
        shipped = as_it_ships(self.model, is_replayed=self.is_replayed)
        if candidate.strategy is None:
            return shipped
        model = self.model
        if model.use_sample is not None and why_not_ddp(candidate.strategy, model, self.cluster):
            model = replace(model, use_sample=None)
        settings = settings_for(
            candidate.strategy, model, self.cluster, gradient_as_bucket_view=gradient_as_bucket_view
        )
        if self.model.use_sample is not None:
            settings = replace(settings, find_unused_parameters=True, frozen=())
        return replace(settings, frozen=()) if self.is_replayed else settings

    def policy(self, best_seconds: float | None, steps_each: int = 1) -> Policy:
        """Return how long a strategy is measured, with samples of so many steps each.

        Before the first measurement, the bound stands in for the step time.
        """
        return self.effort.policy(best_seconds or self.limit().seconds, steps_each)

    def proof_policy(self, best_seconds: float | None, steps_each: int = 1) -> Policy:
        """Return how long a contestant of the proof is warmed up."""
        return self.effort.proof_policy(best_seconds or self.limit().seconds, steps_each)

    def bound(self) -> Bound:
        """Return the bound of exact strategies without stages. A replay draws the rows that it touches evenly."""
        return bound(self.model, self.cluster, rates=rates_of(self.cluster), even_rows=self.is_replayed)

    def stage_bound(self) -> Bound | None:
        """Return the bound of strategies with stages; None if the study does not search them."""
        if not self.searches_stages:
            return None
        return stage_bound(self.model, self.cluster, rates=rates_of(self.cluster))

    def limit(self) -> Bound:
        """Return the bound of all exact strategies that the study searches."""
        found = [self.bound(), self.stage_bound()]
        return min((one for one in found if one is not None), key=lambda one: one.seconds)

    def run(
        self, candidate: Candidate, number: int, *, best_seconds: float | None = None, is_repeated: bool = False
    ) -> Record:
        """Try a candidate as `attempt` does, and return the record alone."""
        return self.attempt(candidate, number, best_seconds=best_seconds, is_repeated=is_repeated).record

    def attempt(
        self, candidate: Candidate, number: int, *, best_seconds: float | None = None, is_repeated: bool = False
    ) -> EndedTrial:
        """Try a candidate on the cluster; stop early if it is clearly worse than the best so far.

        `is_repeated` says that it is tried again after a failure that was blamed on the machines.
        """
        started = dt.datetime.now(tz=dt.UTC)
        outcome: Measurement | Failure
        blame: Blame | None = None
        self.other_cpu_share()
        try:
            outcome = measure(
                self.service,
                self.contestant(candidate),
                functools.partial(self.policy, best_seconds),
                best_seconds=best_seconds,
                compute_seconds=strategy_compute_seconds(candidate.strategy, self.model, self.cluster),
            )
        except TrialFailed as failure:
            outcome, blame = failure.as_record(is_repeated=is_repeated), failure.blame
        else:
            outcome = self._flagged(outcome, self.other_cpu_share())
        record = self._record(self.preparer.prepare(candidate), number, started, outcome)
        return EndedTrial(record=record, blame=blame)

    def record_of_proof(
        self,
        candidate: Candidate,
        number: int,
        started: dt.datetime,
        measurement: Measurement,
        *,
        other_cpu_share: float | None,
    ) -> Record:
        """Return the measurement of a proof as the record of a trial."""
        return self._record(
            self.preparer.prepare(candidate), number, started, self._flagged(measurement, other_cpu_share)
        )

    def other_cpu_share(self) -> float | None:
        """Return the share of this machine's processors that others used since the last call; None if unknown."""
        return None if self.others_share is None else round(self.others_share(), 4)

    def _flagged(self, measurement: Measurement, share: float | None) -> Measurement:
        """Return the measurement with the processor share of other programs, and a flag if it was too much."""
        is_busy = share is not None and share > self.max_other_cpu
        flags: tuple[Flag, ...] = (*measurement.flags, "busy_machine") if is_busy else measurement.flags
        return replace(measurement, other_cpu_share=share, flags=flags)

    def _environment(self) -> dict[str, str]:
        """Return the environment of the measurement, with the flags of the model's profile."""
        profiled = self.model.timeline.profiled
        return {
            **environment(self.cluster),
            **({"engine": "torch_ddp"} if self.target == "ddp" else {}),
            **({"profile": ", ".join(profiled.flags)} if profiled is not None and profiled.flags else {}),
        }

    def _record(
        self, trial: PreparedTrial, number: int, started: dt.datetime, outcome: Measurement | Failure
    ) -> Record:
        strategy, bundle = trial.candidate.strategy, trial.bundle
        return Record(
            study=self.study,
            trial=number,
            origin=trial.candidate.origin,
            model_name=self.model.name,
            model_fingerprint=self.model.fingerprint(),
            cluster_name=self.cluster.name,
            cluster_fingerprint=self.cluster.fingerprint(),
            strategy=None if strategy is None else dump_strategy(strategy),
            strategy_id=None if bundle is None else bundle.strategy_id,
            plan_id=None if bundle is None else bundle.plan_id,
            classes=("exact",) if strategy is None else tuple(sorted(strategy.classes)),
            measurement=outcome if isinstance(outcome, Measurement) else None,
            failure=outcome if isinstance(outcome, Failure) else None,
            plan=trial.facts,
            model_spec=model_spec(self.model).spec_id,
            cluster_spec=cluster_spec(self.cluster).spec_id,
            environment=self._environment(),
            compute="replayed" if self.is_replayed else "real",
            network="emulated" if self.cluster.is_emulated else "real",
            dilation=self.dilation,
            started=started.isoformat(timespec="seconds"),
        )


def environment(cluster: ClusterSpec) -> dict[str, str]:
    """Return what a measurement depends on besides model, cluster and strategy."""
    from importlib.metadata import version

    from autosync import __version__

    return {
        "autosync": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "kernel": platform.release(),
        "cpu": platform.machine(),
        # If all ranks are on this machine, they share its processors.
        **({"processors": str(os.cpu_count())} if cluster.is_one_machine else {}),
        "backend": cluster.backend,
    }
