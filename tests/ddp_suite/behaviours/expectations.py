"""The scripts of tests/runtime/expectation_*.py, each with the tasks that it is for.

There they run under chosen ways of the engine, and what is refused is known word by word. Here they run under the
strategies and on the ranks of this suite.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environment import Env, Run, Values, enter

_THERE = Path(__file__).parents[2] / "runtime"
sys.path.insert(0, str(_THERE))
import expectation_states  # noqa: E402 - they lie in another folder
import expectation_steps  # noqa: E402
import expectation_tasks  # noqa: E402

sys.path.remove(str(_THERE))

SCRIPTS: dict[str, tuple[str, ...]] = {
    "plain": ("everything", "scaled"),
    "accumulates": ("everything",),
    "schedules": ("everything",),
    "several_forwards": ("everything",),
    "uneven": ("everything",),
    "checkpoints": ("layers",),
    "checkpoints_reentrant": ("layers",),
    "clips": ("clipped",),
    "scales": ("scaled_adam", "scaled_fused"),
    "scales_and_clips": ("scaled_and_clipped",),
    "scales_until_it_fits": ("scaled_adam",),
    "scaler_is_off": ("scaled_and_clipped",),
    "state_dict_is_bare": ("everything",),
    "state_dict_of_layers": ("everything",),
    "loads_a_model": ("everything",),
    "averages": ("everything",),
    "copies": ("everything",),
    "fails_in_forward": ("layers",),
    "fails_before_gradients": ("layers",),
    "zeroes_in_place": ("layers",),
    "buffers": ("normed",),
    "buffers_of_all": ("normed",),
}


class Expected(Run):
    """A run as those scripts know it."""

    def start(self, *, ddp: dict[str, Any] | None = None, **options: Any) -> "Expected":
        super().start(ddp={"find_unused_parameters": hasattr(self.model, "idle"), **(ddp or {})}, **options)
        return self


def _runs(script: str, task: str) -> Callable[[Env], Values]:
    functions: dict[str, Any] = {**vars(expectation_steps), **vars(expectation_states)}

    def behaviour(e: Env) -> Values:
        run = Expected(e, getattr(expectation_tasks, task)(), len(e.runs))
        e.runs.append(run)
        values: Values = functions[script](run)
        return values

    return behaviour


for _script, _tasks in SCRIPTS.items():
    for _task in _tasks:
        # Mixed precision is compared within what its sums may differ by.
        enter(
            f"{_script}_of_{_task}",
            _runs(_script, _task),
            group="expectations",
            tolerance=1e-3 if _task.startswith("scaled") else None,
        )
