"""Gradients that a script sets to zero instead of None: momentum and decay then move what no rank uses."""

from collections.abc import Callable
from typing import Any

from behaviours.unused import FIND, PATTERNS, Branches
from environment import Env, Run, Values, adamw, enter, momentum, task


def _zeroed(choose: Callable[[int, int], list[int]], optimizer: Any) -> Callable[[Env], Values]:
    """The script sets gradients to zero instead of None: then momentum and decay move a branch that no rank uses."""

    def run_zeroed(e: Env) -> Values:
        run = e.run(task(lambda: Branches(lambda step: choose(step, e.rank)).double(), optimizer)).start(ddp=FIND)
        losses = []
        for _ in range(6):
            run.optimizer.zero_grad(set_to_none=False)
            loss = run.loss()
            loss.backward()
            run.optimizer.step()
            losses.append(loss.item())
        return {"losses": losses, **run.values()}

    return run_zeroed


for _name in ("branch_taken_in_turn", "branch_not_taken_at_first", "branch_not_taken_later", "branch_none_on_one_rank"):
    enter(f"{_name}_and_zeroed", _zeroed(PATTERNS[_name], momentum), group="unused")
enter("branch_not_taken_later_and_zeroed_by_adamw", _zeroed(PATTERNS["branch_not_taken_later"], adamw), group="unused")


def _at_first(step: int) -> list[int]:
    return [0, 1, 2] if step < 3 else [0]


def _zeroed_and(then: Callable[[Env, Run], Any]) -> Callable[[Env], Values]:
    """The script sets gradients to zero, and then does something more before the backward pass without a branch."""

    def run_zeroed(e: Env) -> Values:
        run = e.run(task(lambda: Branches(_at_first).double(), momentum)).start(ddp=FIND)
        losses = []
        for _ in range(6):
            run.optimizer.zero_grad(set_to_none=False)
            then(e, run)
            loss = run.loss()
            loss.backward()
            run.optimizer.step()
            losses.append(loss.item())
        return {"losses": losses, **run.values()}

    return run_zeroed


def _accumulate(_: Env, run: Run) -> None:
    with run.no_sync():
        run.loss().backward()


for _name, _then in {
    "dropped": lambda _, run: run.optimizer.zero_grad(),
    "dropped_by_hand": lambda _, run: [setattr(one, "grad", None) for one in run.parameters()],
    "dropped_in_part": lambda _, run: [setattr(one, "grad", None) for one in list(run.parameters())[:4]],
    "zeroed_again": lambda _, run: run.called.zero_grad(set_to_none=False),
    "accumulated": _accumulate,
}.items():
    enter(f"zeroed_and_{_name}_before_a_branch_is_left_out", _zeroed_and(_then), group="unused")
