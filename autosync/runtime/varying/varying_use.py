"""Leaves gradients where they are in steps in which no rank uses their variables.

A step goes like this on every rank:

1. When the first gradient comes, the rank predicts the variables that it uses (`called_modules`). A thread sends the
   prediction to the others and merges theirs, while backward goes on. What no rank predicts *stays*.
2. The thread contributes nothing for variables that other ranks use and this rank does not, so that messages with
   several variables need not wait for the end of backward. (Where the engine updates, they wait for it.)
3. A gradient that this rank has not predicted is *held* until backward has ended. If nothing was contributed for it,
   it then travels as usual. If something was, or if its variable stays, it is *late*.
4. When backward has ended, the ranks merge what is late on any of them. Late gradients are summed by all ranks. Where
   the user's optimizer updates, the sum is added to what has travelled. Where the engine updates, it takes the place
   of the sum that a transfer would have made, and the engine goes on with it.

So a wrong prediction costs time, and changes nothing else. The first step predicts that everything is used.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence

import torch

from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.execution import Execution
from autosync.runtime.memory.unused_variables import NOTHING
from autosync.runtime.session.agreement import STATE_TAG
from autosync.runtime.session.gradients import Gradients
from autosync.runtime.varying.bitmaps import Bitmaps
from autosync.runtime.varying.called_modules import CalledModules
from autosync.runtime.varying.late_gradients import LateGradients
from autosync.runtime.varying.may_stay import MayStay

_PREDICTED_TAG, _LATE_TAG, _SUM_TAG = STATE_TAG + 5, STATE_TAG + 6, STATE_TAG + 7


class _Step:
    """What a rank predicts for one step, and what the ranks have agreed on.

    `early` are the gradients that users see of variables for which the thread has contributed nothing.
    """

    def __init__(self, iteration: int, predicted: set[str]) -> None:
        self.iteration = iteration
        self.predicted = predicted
        self.is_agreed = threading.Event()
        self.staying: set[str] = set()
        self.early: dict[str, torch.Tensor] = {}
        self.held: list[str] = []


class VaryingUse:
    """Predicts, agrees and corrects which variables of one model travel. Call `close` at the end."""

    def __init__(
        self,
        facts: MayStay,
        model: torch.nn.Module,
        parameters: Mapping[str, torch.nn.Parameter],
        *,
        num_workers: int,
        engine: Engine,
        execution: Execution,
        gradients: Gradients,
    ) -> None:
        links, travelling = execution.links, execution.travelling
        assert travelling is not None, "the execution was made for variables that may stay"
        self._facts = facts
        self._names = frozenset(facts.names)
        self._numbers = {name: number for number, name in enumerate(parameters)}
        self._parameters = {name: parameters[name] for name in facts.names}
        self._called = CalledModules(model, self._parameters)
        self._predictions = Bitmaps(links, facts.names, num_ranks=num_workers, tag=_PREDICTED_TAG)
        self._lates = Bitmaps(links, facts.names, num_ranks=num_workers, tag=_LATE_TAG)
        self._sums = LateGradients(links, num_workers=num_workers, tag=_SUM_TAG)
        self._links = links
        self._num_workers = num_workers
        self._travelling = travelling
        self._engine = engine
        self._execution = execution
        self._gradients = gradients
        # Variables whose gradients came in passes that were not synchronised.
        self._accumulated: set[str] = set()
        self._is_first = True
        self._step: _Step | None = None
        # The late variables that the user's optimizer updates, and this rank's gradients of them.
        self._late: list[str] = []
        self._own: dict[str, torch.Tensor] = {}
        self._steps: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="autosync-agreement", daemon=True)
        self._thread.start()

    @property
    def num_variables(self) -> int:
        """The number of variables that may stay."""
        return len(self._facts.names)

    # Called by the training thread, or by autograd's threads for it.

    def begin(self, iteration: int) -> None:
        """Predict what a step uses, when its first gradient comes or when it has none."""
        self._step = _Step(iteration, set(self._names) if self._is_first else self._called.names())
        self._steps.put(self._step)

    def accumulated(self, name: str) -> None:
        """Note a gradient that is not synchronised yet."""
        if name in self._names:
            self._accumulated.add(name)

    def holds(self, name: str) -> bool:
        """Hold a gradient back if this rank has not predicted it; return whether it was held."""
        step = self._step
        assert step is not None, "a gradient that is synchronised belongs to a step"
        if name in step.predicted or name not in self._names:
            return False
        step.held.append(name)
        return True

    def end(self, missing: Sequence[str]) -> None:
        """End a step's gradients when its backward pass has ended; `missing` are the variables that got none in it."""
        step = self._step
        assert step is not None, "the step has begun"
        self._await(step)
        late, left = [], []
        for name in step.held:
            if name in step.staying or name in step.early:
                late.append(name)
            else:
                self._gradients.take(name)
        for name in missing:
            if name in step.predicted or name not in self._names:
                left.append(name)
            elif name in step.staying:
                if name in self._accumulated:
                    late.append(name)
            elif name not in step.early:
                left.append(name)
        self._learn(missing)
        # Messages can go while the ranks tell one another what is late.
        self._gradients.take_missing(left)
        self._sum_late(step, late)

    def _await(self, step: _Step) -> None:
        step.is_agreed.wait()
        self._engine.raise_failure()

    def _learn(self, missing: Sequence[str]) -> None:
        """From now on, predict variables that were used although their modules were not called."""
        step = self._step
        assert step is not None, "it has begun"
        if self._is_first or step.held:
            used = self._names.difference(missing) | self._accumulated
            self._called.learn(used - self._called.names())
        self._is_first = False
        self._accumulated.clear()
        self._called.forget()

    def _sum_late(self, step: _Step, mine: Sequence[str]) -> None:
        """Tell the other ranks what is late here, and take the sums of what is late on any rank."""
        for name in mine:
            self._execution.forget(name)
        late = self._lates.union(mine)
        engines = self._facts.engines
        for name, seen in step.early.items():
            if name in mine:
                gradient = self._parameters[name].grad
                assert gradient is not None, "the gradient that came"
                self._own[name] = gradient
            self._gradients.put_nothing(name, seen)
        self._gradients.leave(step.staying - engines)
        self._late = [name for name in late if name not in engines]
        if engines:
            self._end_of_engines(step, frozenset(mine), late)

    def _end_of_engines(self, step: _Step, mine: frozenset[str], late: Sequence[str]) -> None:
        """Put the sums of late gradients where the engine's transfers would put them, and let the engine go on."""
        engines = self._facts.engines
        summed = self._facts.closed(name for name in late if name in engines)
        places: list[torch.Tensor] = []
        for name in self._facts.names:
            if name in summed:
                gradient = self._parameters[name].grad if name in mine else None
                if gradient is None:
                    self._execution.take_nothing(name, step.iteration)
                else:
                    self._execution.take_gradient(name, gradient, step.iteration)
                places += self._execution.memory.gradients_of(name, step.iteration)
        self._sums.sum_in_place(places)
        self._travelling.decide(step.iteration, summed)
        for name in self._facts.names:
            if name in engines and name in step.staying:
                self._engine.gradient_ready(self._numbers[name])

    @torch.no_grad()
    def correct(self) -> None:
        """Add late gradients to the gradients that have travelled, when these are finished."""
        late, own = self._late, self._own
        self._late, self._own = [], {}
        if not late:
            return
        assert self._step is not None, "it has begun"
        flat = [self._contribution(name, own) for name in late]
        self._sums.sum_in_place(flat)
        for name, values in zip(late, flat, strict=True):
            parameter = self._parameters[name]
            total = values.view(parameter.shape)
            travelled = None if name in self._step.staying else parameter.grad
            if travelled is not None:
                total += travelled
            if name in own:
                parameter.grad = own[name]
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter, requires_grad=False)
            parameter.grad.copy_(total)

    def _contribution(self, name: str, own: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return a flat copy of this rank's part of the mean of a late gradient, or what changes no sum.

        It is divided before the sum, as DDP does: a sum of float16 may be too large for its type.
        """
        assert self._step is not None, "it has begun"
        parameter = self._parameters[name]
        gradient = parameter.grad if name in self._step.staying else own.get(name)
        if gradient is None:
            return torch.full((parameter.numel(),), NOTHING, dtype=parameter.dtype, device=parameter.device)
        return gradient.detach().clone(memory_format=torch.contiguous_format).view(-1).div_(self._num_workers)

    # The thread.

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        while (step := self._steps.get()) is not None:
            try:
                self._agree(step)
            except Exception as error:  # noqa: BLE001 - any error must reach the training thread
                self._travelling.fail(error)
                self._engine.fail(error)
                step.is_agreed.set()
                return
            step.is_agreed.set()

    def _agree(self, step: _Step) -> None:
        """Merge the ranks' predictions, and contribute nothing for what this rank does not use."""
        used = self._facts.closed(self._predictions.union(step.predicted & self._names))
        ready: list[str] = []
        for name in self._facts.names:
            is_engines = name in self._facts.engines
            if name not in used:
                step.staying.add(name)
                self._execution.memory.release_gradient(name, step.iteration)
            elif name in step.predicted or is_engines or self._parameters[name].grad is not None:
                continue
            else:
                seen = self._execution.take_nothing(name, step.iteration)
                assert seen is not None, "gradients that travel as rows never stay"
                step.early[name] = seen
            if not is_engines:
                ready.append(name)
        self._travelling.agree(step.iteration, step.staying)
        if not self._facts.engines:
            self._travelling.decide(step.iteration, ())
        for name in ready:
            self._engine.gradient_ready(self._numbers[name])

    # The end.

    def close(self, *, patience_seconds: float | None = None) -> None:
        """Remove the hooks and end the thread, which may still wait for other ranks, or for `patience_seconds`."""
        self.remove_hooks()
        if self._step is not None and not self._step.is_agreed.wait(patience_seconds):
            self._links.abort()
        self._steps.put(None)
        self._thread.join()

    def remove_hooks(self) -> None:
        """Remove the hooks only; a forked process has no thread."""
        self._called.close()
