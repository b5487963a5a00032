"""The door for a script whose strategy changes while it trains: what it patches, and whom it tells.

Torch's own Reducer stays in the script's `DistributedDataParallel` until a `Switch` puts something in its place. The
door tells a listener where steps begin, and the observation what passes and updates do.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel, distributed
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from autosync.errors import OperationError
from autosync.runtime.parallelize import bare_of
from autosync.runtime.session.hooks import Hook
from autosync.runtime.session.optimizer_steps import Arguments, after_closure, given_to
from autosync.script.door import Door
from autosync.script.observing import Observation
from autosync.script.refusals import refuse_arguments, replaced_methods
from autosync.script.script_facts import ScriptFacts
from autosync.script.stand_in import BundleReducer, is_trained, refuse_earlier
from autosync.script.step_meter import StepMeter
from autosync.script.switching import Switch, chosen_outputs
from autosync.strategy.bundle import Bundle

Method = Callable[..., Any]


class StepListener(Protocol):
    """Hears where steps begin. It is called in the script's own thread, and may change the strategy."""

    def step_begins(self, door: SwitchingDoor) -> None:
        """A step begins; the steps before it are in `door.meter`."""


class SwitchingDoor(Door):
    """While it is open, the one `DistributedDataParallel` of the process trains by what its switch has in place."""

    def __init__(self, listener: StepListener) -> None:
        super().__init__(())
        self.meter = StepMeter()
        self.is_tuned = False
        """Whether tuning is over. Then stock DDP trains other models too, and nothing ends the script."""
        self.refusal: OperationError | None = None
        """Why stock DDP trains the script's model although a strategy is wanted."""
        self._listener = listener
        self._switch: Switch | None = None
        self._observation: Observation | None = None
        self._parameters: set[int] = set()
        self._wanted: Bundle | None = None
        self._model: Callable[[], torch.nn.Module | None] = lambda: None
        self._depth = 0
        self._num_updates = 0
        self._is_in_training = True

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Patch what `patches` lists, and listen to optimizers; put all back at the end."""
        handles = [
            register_optimizer_step_pre_hook(self._update_begins),
            register_optimizer_step_post_hook(self._update_ends),
        ]
        try:
            with super().open():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def patches(self) -> list[tuple[Any, str, Any]]:
        """What has the attributes, their names, and what is there while the door is open."""
        stock = vars(DistributedDataParallel)
        clip = torch.nn.utils.clip_grad.clip_grad_norm_
        return [
            (DistributedDataParallel, "_ddp_init_helper", self._wrapping(stock["_ddp_init_helper"])),
            (DistributedDataParallel, "_pre_forward", self._before_forward(stock["_pre_forward"])),
            (DistributedDataParallel, "_post_forward", self._after_forward(stock["_post_forward"])),
            *((DistributedDataParallel, name, method) for name, method in replaced_methods()),
            (distributed, "_DDPSink", chosen_outputs(distributed._DDPSink)),  # noqa: SLF001 - DDP has it there
            (torch.autograd, "backward", self._before_backward(torch.autograd.backward)),
            (torch.nn.utils, "clip_grad_norm_", self._clipping(clip)),
            (torch.nn.utils.clip_grad, "clip_grad_norm_", self._clipping(clip)),
            (torch.optim.Optimizer, "__init__", self._noting(vars(torch.optim.Optimizer)["__init__"])),
            (_BaseDataLoaderIter, "__next__", self._waiting(vars(_BaseDataLoaderIter)["__next__"])),
            (torch.amp.GradScaler, "step", self._scaling(vars(torch.amp.GradScaler)["step"])),
        ]

    # What the listener asks for.

    @property
    def switch(self) -> Switch:
        """What synchronises the model now."""
        assert self._switch is not None, "a step begins in a model that was wrapped"
        return self._switch

    def train_by(self, bundle: Bundle | None) -> None:
        """Train by a bundle from the step that begins now, or by stock DDP; a refused bundle leaves stock DDP there."""
        self._wanted = None
        self.switch.put(bundle)
        self._wanted = bundle

    def observe(self) -> None:
        """Observe the steps from the one that begins now."""
        self._observation = Observation(bare_of(self.switch.ddp.module))
        self._observation.begin()

    def facts(self, name: str) -> ScriptFacts:
        """End the observation, and return what it saw of the script of this name."""
        assert self._observation is not None, "asked after it was begun"
        observation, self._observation = self._observation, None
        observation.end()
        parameters = bare_of(self.switch.ddp.module).parameters()
        return observation.facts(name, self._optimizers.holding(parameters))

    # What DDP's methods do besides their own work.

    def _wrapping(self, stock: Method) -> Method:
        def wrap(ddp: Any, *arguments: Any, **options: Any) -> None:
            model = bare_of(ddp.module)
            if self._switch is not None:
                if self._model() is not model:
                    # A copy, whose weights are averages for example, or a second model. Stock DDP has it.
                    if self._switch.ddp is None or any(id(one) in self._parameters for one in model.parameters()):
                        # It trains parameters of the first one, as a classifier trains its encoder's.
                        self._switch.leave()
                    stock(ddp, *arguments, **options)
                    return
                # A script may wrap its model anew for another phase.
                self._switch.leave()
                self._switch = None
            _refuse_unmeasured(ddp)
            refuse_arguments(ddp, (name for name, one in model.named_parameters() if one.requires_grad))
            stock(ddp, *arguments, **options)
            self._switch = Switch(ddp, self._optimizers, renew=lambda ddp: stock(ddp, *arguments, **options))
            self._parameters = {id(one) for one in model.parameters()}
            self._model = weakref.ref(model)
            model.register_state_dict_pre_hook(Hook(lambda *_: self.meter.disturb("model_state")))  # type: ignore[no-untyped-call]
            self._num_wrapped += 1

        return wrap

    def _refuse_other(self, model: torch.nn.Module) -> NoReturn:
        """Refuse to train by another wrapper than the one whose strategy is tuned."""
        if self._model() is model:
            refuse_earlier(model)
        raise OperationError(
            "the script wraps a second model in DistributedDataParallel, or copies the first one, and trains it: only "
            "one model is tuned while it trains (tune a task of each model: autosync tune model.py)"
        )

    def _trains_another(self, ddp: Any) -> bool:
        """Whether a forward pass is one to train another model than the one that is tuned."""
        is_other = torch.is_grad_enabled() and ddp is not self.switch.ddp and not self.is_tuned
        return is_other and is_trained(bare_of(ddp.module))

    def _before_forward(self, stock: Method) -> Method:
        def pre_forward(ddp: Any, *inputs: Any, **options: Any) -> Any:
            if not torch.is_grad_enabled():
                self.meter.disturb("bare_forward")
            if self._trains_another(ddp):
                self._refuse_other(bare_of(ddp.module))
            if not torch.is_grad_enabled() or ddp is not self.switch.ddp:
                return stock(ddp, *inputs, **options)
            if self.meter.has_no_update:
                self._leave_out_step()
            if self.meter.ends_a_step():
                self._begin_step(ddp)
            if ddp.module.training != self._is_in_training:
                # Some of the passes belong to an evaluation.
                self.meter.disturb("evaluation")
            if isinstance(ddp.reducer, BundleReducer):
                ddp.reducer.begin()
            result = stock(ddp, *inputs, **options)
            if self._observation is not None:
                self._observation.forward_begins([inputs, options], syncs=ddp.require_backward_grad_sync)
            return result

        return _not_compiled(pre_forward)

    def _begin_step(self, ddp: Any) -> None:
        if self._observation is not None:
            self._observation.step_ends()
        self._listener.step_begins(self)
        if self.switch.bundle is not self._wanted:
            self._put_anew()
        if thawed := self.switch.thawed():
            self.train_by(None)
            self.refusal = OperationError(
                f"the script has thawed {thawed}, which the strategy does not synchronise because it was frozen"
            )
        self.meter.step_begins()
        self._is_in_training = ddp.module.training

    def _leave_out_step(self) -> None:
        """Go on as if the passes whose update was skipped had not been made."""
        if self._observation is not None:
            self._observation.step_ends(has_update=False)
        self.meter.step_begins()

    def _put_anew(self) -> None:
        """Have the wanted bundle train the model that the script has wrapped anew, if it fits."""
        try:
            self.switch.put(self._wanted)
        except OperationError as error:
            self._wanted = None
            self.refusal = OperationError(
                f"the script has wrapped its model anew, and the strategy does not fit it as it is now: {error}"
            )

    def _after_forward(self, stock: Method) -> Method:
        def post_forward(ddp: Any, output: Any) -> Any:
            output = stock(ddp, output)
            if self._observation is not None and torch.is_grad_enabled():
                self._observation.forward_ends(output)
            return output

        return _not_compiled(post_forward)

    def _before_backward(self, stock: Method) -> Method:
        def backward(tensors: Any, *rest: Any, **more: Any) -> Any:
            if self._observation is not None:
                self._observation.backward_begins(tensors)
            return stock(tensors, *rest, **more)

        return backward

    def _waiting(self, stock: Method) -> Method:
        def next_batch(batches: Any) -> Any:
            # An iterator of another library may lack it, and the script's training must go on.
            if getattr(batches, "_num_yielded", None) == 0:
                self.meter.disturb("first_batch")
            with self.meter.waiting(batches):
                return stock(batches)

        return next_batch

    def _clipping(self, stock: Method) -> Method:
        def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, *rest: Any, **more: Any) -> Any:
            given = parameters if isinstance(parameters, torch.Tensor) else list(parameters)
            if self._observation is None:
                return stock(given, max_norm, norm_type, *rest, **more)
            tensors = [given] if isinstance(given, torch.Tensor) else given
            with self._observation.uses.clipping(tensors, float(max_norm), float(norm_type)):
                return stock(given, max_norm, norm_type, *rest, **more)

        return clip_grad_norm_

    # The optimizers.

    def _noting(self, stock: Method) -> Method:
        noting = super()._noting(stock)

        def init(optimizer: torch.optim.Optimizer, *arguments: Any, **options: Any) -> None:
            noting(optimizer, *arguments, **options)
            optimizer.register_state_dict_pre_hook(Hook(lambda *_: self.meter.disturb("optimizer_state")))

        return init

    def _update_begins(
        self, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Arguments | None:
        if not self._trains(optimizer):
            return None
        self._depth += 1
        changed = after_closure(optimizer, arguments, options, lambda: self._observe_update(optimizer, ()))
        if changed is None:
            self._observe_update(optimizer, given_to(arguments, options))
        return changed

    def _observe_update(self, optimizer: torch.optim.Optimizer, given: Sequence[Any]) -> None:
        if self._observation is not None:
            self._observation.update_begins(optimizer, given)

    def _update_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # Where a class calls its parent's step, hooks are called twice.
        if self._trains(optimizer):
            self._depth = max(self._depth - 1, 0)
            if self._depth == 0:
                self._num_updates += 1
                self.meter.update_ends()
                if self._observation is not None:
                    self._observation.update_ends(optimizer)

    def _scaling(self, stock: Method) -> Method:
        def step(scaler: Any, optimizer: torch.optim.Optimizer, *arguments: Any, **options: Any) -> Any:
            before = self._num_updates
            result = stock(scaler, optimizer, *arguments, **options)
            # After an overflow, the scaler does not call the optimizer.
            if self._num_updates == before and self._trains(optimizer):
                self.meter.update_is_skipped()
            return result

        return step

    def _trains(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(id(one) in self._parameters for group in optimizer.param_groups for one in group["params"])


def _refuse_unmeasured(ddp: Any) -> None:
    """Refuse models whose steps would be measured wrongly, or that other ranks do not train."""
    if ddp.device_type != "cpu":
        raise OperationError(
            "tuning while a script trains is for models on the CPU: on a GPU, the time at which the host begins a step "
            "is not that of the work (tune a task of this model: autosync tune model.py)"
        )
    if ddp.process_group.size() != dist.get_world_size():
        raise OperationError(
            "tuning while a script trains is for models that all ranks train: this one has a group of its own (tune a "
            "task of this model: autosync tune model.py)"
        )


def _not_compiled(function: Method) -> Method:
    disabled: Method = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return disabled
