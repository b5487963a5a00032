"""The study of a script: a tuning plan whose trials are steps of the script's training."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from autosync.script_tuning.service import ScriptTrials
from autosync.script_tuning.space import script_ground
from autosync.search.measurement_effort import Effort
from autosync.search.proposers.interface import Ground
from autosync.search.trial_runner import ComparingService
from autosync.search.tuning_plan import TuningPlan
from autosync.specs.background_load import BackgroundLoad
from autosync.trials.compare import Design
from autosync.trials.policy import Policy

SCRIPT_EFFORT = Effort(
    trial=Policy(
        min_warmup_steps=2,
        max_warmup_steps=2,
        window_steps=2,
        min_steps=4,
        max_steps=10,
        steps_per_run=5,
        interval_share=0.04,
        budget_seconds=600.0,
        give_up_factor=1.05,
        glance_steps=2,
    ),
    proof=Design(num_steps=16, num_rounds=8, budget_seconds=600.0),
)
"""How long strategies are measured. A trial takes at most 20 steps of the script, with those that do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptPlan(TuningPlan):
    """The plan of a study of a script that runs already."""

    running: ScriptTrials
    users_update: bool

    def service(self) -> AbstractContextManager[ComparingService]:
        """Return the service of the running script, which goes on after the study."""
        return contextlib.nullcontext(self.running)

    def circumstances(self) -> Mapping[str, Any]:
        """Return the fields of the trial runner: the script itself computes."""
        return {
            "is_replayed": False,
            "others_share": BackgroundLoad().share if self.cluster.is_one_machine else None,
        }

    def ground(self) -> Ground:
        """Return the ground for a proposer, with the strategies that the script's door allows."""
        return script_ground(
            self.settings, self.preparer, users_update=self.users_update, step_seconds=self.running.stock_seconds
        )
