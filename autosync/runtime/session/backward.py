"""Follows the backward passes of one model: decides which gradients are synchronised, and what is refused."""

from __future__ import annotations

from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.execution import Execution
from autosync.runtime.engine.trace import ComputeSpan
from autosync.runtime.session.backward_passes import Passes
from autosync.runtime.session.engine_step import EngineStep
from autosync.runtime.session.gradient_arrivals import Arrivals
from autosync.runtime.session.gradients import Gradients
from autosync.runtime.session.unchanged_training import Expected
from autosync.runtime.session.variable_roles import VariableRoles
from autosync.runtime.varying.varying_use import VaryingUse

_AMONG_GRADIENTS = (
    "a backward pass has ended with an error when some gradients were on their way already, to which nothing can be "
    "added (release(model) and parallelize again to go on)"
)
_AT_THE_END = (
    "the end of a backward pass was cut short, by Ctrl-C or an error, when gradients were on their way: other ranks "
    "may have gone on with them (end all ranks and start again from a checkpoint)"
)


class BackwardSync:
    """Follows the backward passes of a model and synchronises their gradients.

    `syncs` is false while gradients only accumulate. `are_coming` is true while gradients of a synchronised pass
    arrive, `are_local` while accumulated gradients are this rank's own. With `use`, gradients of variables that no rank
    uses do not travel. With `makes_zeros`, a gradient that a function leaves out is zeros.
    """

    def __init__(
        self,
        variables: VariableRoles,
        gradients: Gradients,
        step: EngineStep,
        engine: Engine,
        execution: Execution,
        *,
        unchanged: Expected,
        compute: ComputeSpan | None,
        use: VaryingUse | None = None,
        makes_zeros: bool = True,
    ) -> None:
        self.syncs = True
        self.are_coming = False
        self.are_local = False
        self._names = list(variables.parameters)
        self._parameters = list(variables.parameters.values())
        self._engine_updates = variables.engine
        self._gradients = gradients
        self._step = step
        self._seals = step.seals
        self._engine = engine
        self._execution = execution
        self._unchanged = unchanged
        self._compute = compute
        self._use = use
        # Whether forward passes since the last backward pass ask for synchronisation; None if there was none.
        self._forward_syncs: bool | None = None
        self._arrivals = Arrivals(
            variables.parameters, came=self._gradient_came, is_whole=self._is_whole, makes_zeros=makes_zeros
        )
        self._passes = Passes(begins=self._pass_begins, ends=self._pass_ends, fails=self._pass_fails)

    def close(self) -> None:
        """Stop following passes and gradients."""
        self._passes.close()
        self._arrivals.close()

    def forward_ended(self, *_: Any) -> None:
        """Note whether to synchronise the next backward pass: as under DDP, if any forward pass before it says so."""
        if torch.is_grad_enabled():
            self._passes.train_here()
            self._forward_syncs = self.syncs or bool(self._forward_syncs)

    def prepare_pass(self) -> None:
        """The next backward pass is synchronised, whatever `syncs` is."""
        self._passes.train_here()
        self._forward_syncs = True

    def refuse_step(self) -> None:
        """Refuse an optimizer's step within a backward pass, or after work that was cut short."""
        if self.are_coming:
            raise OperationError("optimizer.step() within a backward pass, when its gradients are still on their way")
        self._step.refuse_unfinished()

    def _pass_begins(self) -> None:
        self._seals.lift()
        self._gradients.note_foreign()
        if not self.are_coming:
            step = self._step
            step.are_thrown_away = step.is_synchronised and not step.ends_with_backward and self._are_gone()

    def _are_gone(self) -> bool:
        """Whether the script has dropped the gradients of the last pass."""
        if self._engine_updates:
            return self._seals.are_gone()
        return all(one.grad is None for one in self._parameters)

    def _gradient_came(self, name: str) -> bool:
        """Handle a gradient that may still be incomplete; return whether it is to be synchronised."""
        if not (self.syncs if self._forward_syncs is None else self._forward_syncs):
            self._passes.gradient_came()
            self._seals.refuse_lifted()
            self._step.is_synchronised = False
            self.are_local = True
            self._execution.forget(name)
            if self._use is not None:
                self._use.accumulated(name)
            return False
        if not self.are_coming:
            self._first_gradient(name)
        return not self._seals.are_spoilt

    def _is_whole(self, name: str) -> None:
        if self._use is None or not self._use.holds(name):
            self._gradients.take(name)

    def _first_gradient(self, name: str) -> None:
        self._passes.gradient_came()
        self._arrivals.begin()
        if not self._seals.spoil():
            if self._step.is_synchronised and not self._step.ends_with_backward:
                self._begin_anew(name)
            self._prepare()
        self.are_coming = True

    def _prepare(self) -> None:
        self._step.refuse_unfinished()
        self._step.prepare()
        self._step.unrepeatable.begin(_AMONG_GRADIENTS)
        zeros = self._gradients.begin(self._seals.taken_zeros())
        if self._use is not None:
            for name in zeros:
                self._use.accumulated(name)
            self._use.begin(self._engine.iteration)

    def _begin_anew(self, name: str) -> None:
        """Refuse a second backward pass before the step, unless the script has dropped the first pass's gradients."""
        self._step.turns.refuse_backward()
        if not self._step.are_thrown_away and not self._engine_updates:
            raise OperationError(
                "a second backward pass before optimizer.step(): under this bundle the engine averages parameters "
                "after each step of the model's optimizers, and knows of none since the last pass, whose gradients are "
                "still there (accumulate under no_sync, with the last pass outside; give parallelize all optimizers)"
            )
        if not self._step.are_thrown_away:
            raise OperationError(
                f"a second backward pass before optimizer.step(): the gradient of {name} is on its way already "
                "(accumulate under no_sync; the last backward pass goes outside)"
            )
        self._step.skip()

    def _pass_fails(self, _: BaseException) -> None:
        self._forward_syncs = None
        self.are_coming = False
        self._seals.restore()

    def _pass_ends(self, is_ours: bool) -> None:  # noqa: FBT001 - a callback with one argument
        if is_ours:
            self._forward_syncs = None
        if not is_ours or not self.are_coming:
            self._seals.restore()
            return
        self.are_coming = False
        if self._compute is not None:
            self._compute.backward_ends()
        if self._seals.are_spoilt:
            self._seals.restore()
            return
        self._synchronise(self._arrivals.end())

    def synchronise_nothing(self) -> None:
        """Take part in a step without a backward pass on this rank: synchronise with others, contribute nothing."""
        self._arrivals.begin()
        self._prepare()
        self._synchronise(self._names)

    def _synchronise(self, missing: list[str]) -> None:
        """Finish a synchronised backward pass that brought no gradients for the variables in `missing`."""
        self._step.unrepeatable.begin(_AT_THE_END)
        if missing:
            self._unchanged.check()
        if self._use is None:
            self._gradients.take_missing(missing)
        else:
            self._use.end(missing)
        self._engine.wait("backward_returns")
        self._gradients.give_back()
        if self._use is not None:
            self._use.correct()
        self._step.gradients_are_there()
        self.are_local = False
        if self._step.ends_with_backward:
            self._step.end_with_backward()
        self._step.unrepeatable.end()
