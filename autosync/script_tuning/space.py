"""The strategies that may be tried on a running script: those under which every rank has all state of the optimizer.

Scripts call `optimizer.state_dict()` on one rank, so strategies with updates in shards or at servers are left out.
Strategies that need server nodes are left out too, because no server runs beside a script that is tuned. If the script
needs whole gradients after the backward pass, only its own optimizer may update.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosync.plan.types import Plan
from autosync.runtime.checkpoints.state_kinds import variables_kept_apart
from autosync.runtime.local.engine_updates import engine_updates
from autosync.search.candidates import known_candidates
from autosync.search.domain import SpaceDomain
from autosync.search.ground_builder import simulator_fields
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.prior import prior_path
from autosync.search.proposers.interface import Ground
from autosync.search.study_folder import StudySettings
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers import synchroniser_kinds

_IN_SHARDS = "sharded"
_WHOLE_SEARCH_SECONDS = 0.4
_LEAST_SEARCH = 0.5
"""A script whose steps are shorter than this gets so much less of a search, down to this share: the search takes
processors from its steps, and each of them is worth less."""


@dataclass(frozen=True, kw_only=True)
class ScriptDomain(SpaceDomain):
    """The strategies of a space that a script's door allows."""

    preparer: TrialPreparer
    users_update: bool

    def contains(self, strategy: Strategy) -> bool:
        return super().contains(strategy) and is_allowed(self.preparer.plan(strategy), users_update=self.users_update)


def is_allowed(plan: Plan, *, users_update: bool) -> bool:
    """Whether a plan leaves all state on every rank, needs no servers, and leaves updates to the script if it must."""
    updates = engine_updates(plan)
    if plan.needed_servers or variables_kept_apart(plan, updates.operations):
        return False
    return not (users_update and updates.variables)


def script_ground(
    settings: StudySettings, preparer: TrialPreparer, *, users_update: bool, step_seconds: float
) -> Ground:
    """Return the ground for a proposer. With `users_update`, only the script's optimizer may update.

    `step_seconds` is the time of a step under stock DDP, on which the number of simulated strategies depends.
    """
    limits = Limits(
        overlaps=("backward",) if users_update else ("backward", "forward"),
        synchronisers=tuple(kind for kind in synchroniser_kinds() if kind != _IN_SHARDS),
        server_updates=("worker",),
        # Its sampler deals even batches.
        shares=False,
        stages=False,
        batching=False,
        # Its own loaders make its batches (see `input_waits`).
        input=False,
    )
    model, cluster = preparer.model, preparer.cluster
    space = Space(model=model, cluster=cluster, limits=limits)
    domain = ScriptDomain(space=space, plan_of=preparer.plan, preparer=preparer, users_update=users_update)
    share = min(max(step_seconds / _WHOLE_SEARCH_SECONDS, _LEAST_SEARCH), 1.0)
    fields = simulator_fields(settings.simulator, model, cluster, prior=prior_path(settings.prior))
    fields |= {name: round(share * fields[name]) for name in ("num_simulated", "num_screened") if name in fields}
    # The ranks train meanwhile, so the search is short.
    fields["num_starts"] = 1
    return Ground(
        model=model,
        cluster=cluster,
        domain=domain,
        limits=limits,
        known=tuple(known_candidates(model, cluster, domain.contains)),
        **fields,
    )
