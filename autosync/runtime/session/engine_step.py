"""The engine's step: what must be over before its gradients are taken, its call, and its end.

One step is made for all of a model's optimizers: when each of them has stepped, or when the script has skipped a step.
The objects that `EngineStep` holds watch what the script does to parameters and optimizers meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from autosync.plan.types import Plan
from autosync.runtime.checkpoints.state_kinds import variables_kept_apart
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.execution import Execution
from autosync.runtime.local.engine_updates import engine_updates, follows_users_updates, norm_operations
from autosync.runtime.local.joint_optimizer import members_of
from autosync.runtime.serving.first_worker import Servers
from autosync.runtime.session.clipping_and_scaling import Declared
from autosync.runtime.session.optimizer_guard import Owned
from autosync.runtime.session.optimizer_steps import Turns
from autosync.runtime.session.pending_parameters import Awaited
from autosync.runtime.session.seals import Seals
from autosync.runtime.session.unrepeatable import Unrepeatable
from autosync.runtime.session.variable_roles import VariableRoles
from autosync.runtime.session.whole_gradients import WholeGradients
from autosync.strategy.bundle import Bundle

_IN_THE_STEP = (
    "optimizer.step() was cut short, by Ctrl-C or an error, when updates were on their way: this rank may have only "
    "some of them (end all ranks and start again from a checkpoint)"
)


class EngineStep:
    """The steps of one model's engine.

    `is_synchronised` is true from the end of a synchronised backward pass to the end of its step. If
    `ends_with_backward`, the engine's step is over when backward returns, and the user's optimizer does the rest.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        bundle: Bundle,
        *,
        plan: Plan,
        variables: VariableRoles,
        execution: Execution,
        engine: Engine,
        servers: Servers | None,
    ) -> None:
        self._members = members_of(optimizer)
        self._variables = variables
        self._execution = execution
        self._engine = engine
        self._norms = norm_operations(plan)
        self._overlaps_forward = plan.overlap == "forward"
        # Those that update: they must know what the script changes.
        self._servers = servers if servers is not None and servers.update else None
        self._shared: frozenset[int] = frozenset()
        self.ends_with_backward = not variables.engine and not follows_users_updates(plan)
        self.is_synchronised = False
        self.are_thrown_away = False
        self.unrepeatable = Unrepeatable()
        self.reloaded: set[str] = set()
        self.kept_apart = variables_kept_apart(plan, engine_updates(plan).operations)
        self.declared = Declared(
            optimizer,
            clip_norm=plan.clip_norm,
            scales=bundle.model.loss_scaling,
            sum_of_squares=self._sum_of_squares,
            skip=self._leave_out,
        )
        self._whole = WholeGradients(plan, execution, engine)
        self.seals = Seals(variables.engine, optimizer, self.declared, self._whole)
        self.turns = Turns(optimizer, variables.engine)
        self.guard = Owned(
            optimizer, variables.engine, execution=execution, apart=self.kept_apart, drain=self.drain, servers=servers
        )
        self.pending = self._make_pending(model)

    def _make_pending(self, model: torch.nn.Module) -> Awaited | None:
        """Make the object that watches parameters between the step and their next use, if that is needed."""
        if not self._overlaps_forward:
            return None
        names = list(self._variables.parameters)
        return Awaited(
            model,
            self._variables.parameters,
            self._wait_before_use,
            holders=self._execution.holders(),
            came=lambda number: self._parameters_came((names[number],)),
        )

    def _wait_before_use(self, variable: int) -> None:
        self._engine.wait("before_use", variable)

    def _parameters_came(self, names: Iterable[str]) -> None:
        """Note that these parameters have the values of the last step."""
        if self._servers is not None:
            self._servers.parameters_came(names)

    # Before a step.

    def refuse_unfinished(self) -> None:
        """Refuse to go on if the engine has failed, or work was cut short that cannot be done twice."""
        self._engine.raise_failure()
        self.unrepeatable.refuse()

    def drain(self) -> None:
        """Wait for all updates under way: from then on parameters have the values of the last step.

        With staleness, they have the values that the next step uses.
        """
        self._engine.wait_done(iterations_back=1)

    def restart(self) -> None:
        """Forget the last step: training goes on from a checkpoint, and iteration numbers will be used again."""
        self.reloaded.clear()
        self._whole.forget()

    def follow_reloaded(self) -> None:
        """Have the engine continue from parameters that the script has loaded."""
        if self.reloaded:
            self.drain()
            self._execution.follow_parameters(self.reloaded, self._engine.iteration)
            self.reloaded.clear()

    def prepare(self) -> None:
        """Prepare for a step's gradients: wait until the previous ones are read, and follow the script's changes."""
        self.seals.part_from_held()
        self._whole.close()
        self.follow_reloaded()
        self.guard.backward_begins()
        # Buffers that earlier iterations still read must not be overwritten.
        self._engine.wait_due(iterations_back=1)
        if self.pending is not None:
            self.pending.settle()

    def gradients_are_there(self) -> None:
        """Note that backward has returned; its gradients are synchronised or on their way."""
        self.seals.seal()
        self.declared.begin()
        self._whole.begin()
        self.is_synchronised = True

    # The step.

    def call(self, *, is_skipped: bool = False) -> None:
        """Start the engine's step when all optimizers have stepped; it updates unless `is_skipped`."""
        self.refuse_unfinished()
        if self._servers is not None:
            self._servers.refuse_changes()
        self.guard.step_begins()
        if self.pending is not None:
            self._shared = self.pending.shared()
        scale = self.declared.end(is_skipped=is_skipped)
        self._whole.end(is_skipped=scale.is_skipped, factor=self.declared.factor)
        if self._execution.optimizer is not None:
            self._execution.optimizer.note(self._engine.iteration, scale, self.turns.options())
        if not scale.is_skipped:
            # As always, a graph from before the step then refuses to go backward with changed parameters.
            torch.autograd.graph.increment_version(self._variables.engine.values())
        # What is reported from here on cannot be taken back. The work ends with `end`.
        self.unrepeatable.begin(_IN_THE_STEP)
        self._engine.step_called()

    def end(self) -> None:
        """End the step, when the optimizers' steps are over, and open the next iteration."""
        self.turns.end()
        self.is_synchronised = False
        self._engine.user_updated()
        if self._overlaps_forward:
            self._engine.begin()
        else:
            self._engine.wait("step_returns")
            self._next_iteration()
            self._parameters_came(self._variables.parameters)
        if self.pending is not None:
            self.pending.begin(self._shared)
        self.unrepeatable.end()

    def skip(self) -> None:
        """Make a step without an update, on all ranks."""
        for member in self._members:
            self.turns.take(member)
        self.call(is_skipped=True)
        self.end()

    def end_with_backward(self) -> None:
        """End the engine's step when backward returns, because the user's optimizer updates everything."""
        self._engine.step_called()
        self._engine.user_updated()
        self._next_iteration()

    def _next_iteration(self) -> None:
        self._engine.wait_due()
        self._engine.begin()

    def _leave_out(self) -> None:
        """Skip this step, as the user's scaler does. All ranks do the same, because all have seen the overflow."""
        self.seals.clear()
        self.skip()
        self.seals.put_back()

    def _sum_of_squares(self) -> float:
        """Wait for the sum of squares of all gradients of this step, and return it."""
        self._engine.wait_operations(self._norms)
        return float(self._execution.memory.norms(self._engine.iteration).sum())
