"""Optimizers of torch's, of scripts', and what scripts do with them."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from environment import Env, Run, Values, adam, adamw, behaviour, enter, momentum, sgd, task
from torch import Tensor, nn
from torch.optim import lr_scheduler

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": sgd,
    "momentum": momentum,
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3),
    "sgd_maximize": lambda p: torch.optim.SGD(p, lr=0.01, maximize=True),
    "sgd_foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "adam": adam,
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True, weight_decay=0.1),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=0.02, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.02, fused=True),
    "adam_maximize": lambda p: torch.optim.Adam(p, lr=0.02, maximize=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1, betas=(0.8, 0.9)),
    "adam_capturable_rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.02, dtype=torch.float64)),
    "sgd_rate_is_a_tensor": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.05, dtype=torch.float64)),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1),
    "adagrad_started": lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adadelta": torch.optim.Adadelta,
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.02),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.02),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.02),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05),
}
for _name, _optimizer in OPTIMIZERS.items():
    enter(f"by_{_name}", lambda e, o=_optimizer: _trains(e, o), group="optimizers")
# torch keeps its rate in float32, and in the parameter's type as soon as a state was loaded.
enter(
    "by_asgd",
    lambda e: _trains(e, lambda p: torch.optim.ASGD(p, lr=0.05, t0=1)),
    group="optimizers",
    tolerance=1e-6,
)


def _trains(e: Env, optimizer: Any, **more: Any) -> Values:
    run = e.start(task(optimizer=optimizer, **more))
    return {"losses": run.steps(6), **run.values()}


def _grouped(p: Iterable[Any], make: Any, **options: Any) -> torch.optim.Optimizer:
    parameters = list(p)
    first = {"params": [one for one in parameters if one.dim() > 1], **options}
    made: torch.optim.Optimizer = make([first, {"params": [one for one in parameters if one.dim() <= 1]}])
    return made


@behaviour
def groups_with_other_decays(e: Env) -> Values:
    return _trains(
        e, lambda p: _grouped(p, lambda g: torch.optim.AdamW(g, lr=0.02, weight_decay=0.0), weight_decay=0.3)
    )


@behaviour
def groups_with_other_rates(e: Env) -> Values:
    return _trains(e, lambda p: _grouped(p, lambda g: torch.optim.SGD(g, lr=0.01), lr=0.1, momentum=0.9))


@behaviour
def a_rate_for_each_parameter(e: Env) -> Values:
    return _trains(
        e, lambda p: torch.optim.Adam([{"params": [one], "lr": 0.01 * (k + 1)} for k, one in enumerate(p)], lr=1.0)
    )


@behaviour
def named_parameters(e: Env) -> Values:
    """The optimizer is given names with its parameters."""
    run = e.run(task(optimizer=momentum))
    run.optimizer = torch.optim.SGD(list(run.model.named_parameters()), lr=0.05, momentum=0.9)
    run.start()
    run.steps()
    return run.values()


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=8),
    "warm_up_then_decay": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.8)], milestones=[2]
    ),
}


def _schedules(e: Env, make: Any, *, before: bool = False) -> Values:
    run = e.run(task(optimizer=momentum))
    scheduler = make(run.optimizer) if before else None
    run.start()
    scheduler = scheduler or make(run.optimizer)
    rates = []
    for _ in range(6):
        run.step()
        scheduler.step()
        rates.append(float(run.optimizer.param_groups[0]["lr"]))
    return {"rates": rates, **run.values()}


for _name, _make in SCHEDULERS.items():
    enter(f"schedule_{_name}", lambda e, make=_make: _schedules(e, make), group="optimizers")
enter("schedule_made_before", lambda e: _schedules(e, SCHEDULERS["one_cycle"], before=True), group="optimizers")


@behaviour
def schedule_on_plateau(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    scheduler = lr_scheduler.ReduceLROnPlateau(run.optimizer, patience=0, factor=0.5)
    for number in range(5):
        run.step()
        scheduler.step(1.0 + number)
    return run.values()


@behaviour
def options_change_by_hand(e: Env) -> Values:
    run = e.start(task(optimizer=adamw))
    for number in range(5):
        for group in run.optimizer.param_groups:
            group["lr"] = 0.01 * (number + 1)
            group["betas"] = (0.9 - 0.1 * number, 0.95)
            group["weight_decay"] = 0.1 * number
        run.step()
    return run.values()


@behaviour
def options_change_right_after_the_step(e: Env) -> Values:
    """What a step was called with counts, not what is written a moment later."""
    run = e.start(task(optimizer=momentum))
    for _ in range(4):
        run.step()
        run.optimizer.param_groups[0]["lr"] *= 0.1
        run.optimizer.param_groups[0]["momentum"] = 0.0
        run.drain()
        run.optimizer.param_groups[0]["lr"] *= 10
        run.optimizer.param_groups[0]["momentum"] = 0.9
    return run.values()


@behaviour
def adds_a_group(e: Env) -> Values:
    run = e.run(task(optimizer=adam))
    run.optimizer = torch.optim.Adam(run.model[0].parameters(), lr=0.02)
    run.start()
    run.step()
    run.optimizer.add_param_group({"params": list(run.model[4].parameters())})
    run.steps(3)
    return run.values()


@behaviour
def optimizer_holds_some_parameters(e: Env) -> Values:
    """The others are trained by nobody."""
    return _trains(e, lambda p: torch.optim.SGD(list(p)[:2], lr=0.05))


@behaviour
def optimizer_given_before_holds_some(e: Env) -> Values:
    """The task's optimizer holds all, the script's some."""
    run = e.run(task(optimizer=momentum))
    run.optimizer = torch.optim.SGD(run.parameters()[:2], lr=0.05, momentum=0.9)
    run.start()
    run.steps()
    return run.values()


@behaviour
def optimizer_holds_others_too(e: Env) -> Values:
    """A parameter that is not the model's (a loss's temperature) in the same optimizer."""
    run = e.run(task(optimizer=momentum))
    extra = nn.Parameter(torch.ones((), dtype=torch.float64))
    run.optimizer.add_param_group({"params": [extra]})
    run.start()
    for _ in range(3):
        run.optimizer.zero_grad()
        (run.loss() * extra).backward()
        run.optimizer.step()
    return {"extra": extra.detach().clone(), **run.values()}


def _two(e: Env, second: Callable[[Any], Any], *, use: Callable[[Any, Any, int], None], gives: bool = False) -> Values:
    """Two optimizers over halves of one model; `parallelize` gets the first, or both."""
    run = e.run(task(optimizer=sgd))
    run.optimizer = torch.optim.SGD(run.model[0].parameters(), lr=0.05)
    other = second([*run.model[2].parameters(), *run.model[4].parameters()])
    run.others = [other] if gives else []
    run.start()
    for number in range(4):
        run.optimizer.zero_grad()
        other.zero_grad()
        run.loss().backward()
        use(run.optimizer, other, number)
    return run.values()


def _both(a: Any, b: Any, _: int) -> None:
    a.step()
    b.step()


def _second_first(a: Any, b: Any, _: int) -> None:
    b.step()
    a.step()


def _in_turn(a: Any, b: Any, number: int) -> None:
    (a if number % 2 else b).step()


enter("two_optimizers", lambda e: _two(e, sgd, use=_both), group="optimizers")
enter("two_optimizers_of_two_classes", lambda e: _two(e, adam, use=_both), group="optimizers")
enter("two_optimizers_second_first", lambda e: _two(e, sgd, use=_second_first), group="optimizers")
enter("two_optimizers_in_turn", lambda e: _two(e, sgd, use=_in_turn), group="optimizers")
enter("two_optimizers_given", lambda e: _two(e, sgd, use=_both, gives=True), group="optimizers")
enter("two_optimizers_of_two_classes_given", lambda e: _two(e, adam, use=_both, gives=True), group="optimizers")
enter("two_optimizers_given_second_first", lambda e: _two(e, sgd, use=_second_first, gives=True), group="optimizers")
enter("two_optimizers_given_in_turn", lambda e: _two(e, sgd, use=_in_turn, gives=True), group="optimizers")


@behaviour
def two_optimizers_over_the_same(e: Env) -> Values:
    """Both hold all parameters: one warms up, then the other goes on."""
    run = e.run(task(optimizer=sgd))
    other = torch.optim.Adam(run.parameters(), lr=0.01)
    run.start()
    run.steps(2)
    for _ in range(3):
        other.zero_grad()
        run.loss().backward()
        other.step()
    return run.values()


@behaviour
def optimizer_made_anew(e: Env) -> Values:
    """The script makes another optimizer of the same class in the midst of training."""
    run = e.start(task(optimizer=momentum))
    run.steps(2)
    run.drain()
    run.optimizer = momentum(run.parameters())
    run.steps(2)
    return run.values()


@behaviour
def optimizer_made_after_parallelize(e: Env) -> Values:
    """As many scripts have it: the model is wrapped first. `parallelize` gets one that is never used."""
    run = e.start(task(optimizer=momentum))
    run.optimizer = momentum(run.called.parameters())
    run.steps()
    return run.values()


@behaviour
def optimizer_wrapped(e: Env) -> Values:
    """A library's wrapper that is no `Optimizer` and calls the script's one."""

    class Wrapper:
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner

        def step(self) -> None:
            self.inner.step()

        def zero_grad(self) -> None:
            self.inner.zero_grad()

    run = e.start(task(optimizer=adam))
    run.optimizer = Wrapper(run.optimizer)  # type: ignore[assignment]
    run.steps()
    return run.values()


@behaviour
def step_method_replaced(e: Env) -> Values:
    """A library puts a function of its own in the place of `optimizer.step`."""
    run = e.start(task(optimizer=adam))
    step, calls = run.optimizer.step, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return step(*args, **kwargs)

    run.optimizer.step = counted  # type: ignore[method-assign]
    run.steps()
    return {"calls": len(calls), **run.values()}


def _closure(run: Run) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        loss.backward()
        return loss

    batch = run.batch()
    return closure


@behaviour
def closure(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    losses = [float(run.optimizer.step(_closure(run))) for _ in range(4)]
    return {"losses": losses, **run.values()}


@behaviour
def closure_after_usual_steps(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    run.steps(2)
    losses = [float(run.optimizer.step(_closure(run))) for _ in range(2)]
    return {"losses": losses, **run.values()}


@behaviour
def closure_that_only_says_the_loss(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    for _ in range(3):
        run.optimizer.zero_grad()
        loss = run.loss()
        loss.backward()
        assert run.optimizer.step(lambda loss=loss: loss.detach()) is not None
    return run.values()


@behaviour(tolerance=1e-6)
def by_lbfgs(e: Env) -> Values:
    """Calls its closure several times a step, and holds one state over all variables."""
    run = e.run(task(optimizer=lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3)))
    run.start()
    for _ in range(3):
        run.optimizer.step(_closure(run))
    return run.values()


@behaviour
def step_twice(e: Env) -> Values:
    """A second step with the same gradients."""
    run = e.start(task(optimizer=momentum))
    run.step()
    run.optimizer.step()
    return run.values()


@behaviour
def step_without_backward(e: Env) -> Values:
    """There are no gradients: nothing is done."""
    run = e.start(task(optimizer=momentum))
    run.optimizer.step()
    run.steps(2)
    run.optimizer.zero_grad()
    run.optimizer.step()
    run.step()
    return run.values()


@behaviour
def optimizer_copied(e: Env) -> Values:
    """A deep copy of model and optimizer, trained alone, changes nothing."""
    run = e.start(task(optimizer=momentum))
    run.steps(2)
    run.drain()
    copied = copy.deepcopy(run.model)
    alone = sgd(copied.parameters())
    torch.manual_seed(7)
    run.task.loss(copied, run.task.batch(torch.Generator().manual_seed(1))).backward()
    alone.step()
    run.steps(2)
    return {**run.values(), **{f"copy {k}": v.clone() for k, v in copied.state_dict().items()}}
