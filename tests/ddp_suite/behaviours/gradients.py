"""What scripts do with gradients between backward and step: read, clip, scale, replace and zero them."""

from collections.abc import Callable
from typing import Any

import torch
from environment import Env, Run, Values, adam, behaviour, enter, momentum, net, numbers, task
from torch import Tensor, nn

CLIP = 0.05


def _between(e: Env, act: Callable[[Run, int], Any], optimizer: Any = momentum, **more: Any) -> Values:
    run = e.start(task(optimizer=optimizer, **more))
    found = []
    for number in range(4):
        run.optimizer.zero_grad()
        run.loss().backward()
        found.append(act(run, number))
        run.optimizer.step()
    return {"found": found, **run.values()}


def _norm(run: Run, _: int) -> float:
    return float(nn.utils.clip_grad_norm_(run.model.parameters(), CLIP))


def _norm_in_some_steps(run: Run, number: int) -> float | None:
    return _norm(run, number) if number < 2 else None


def _norm_of_another_size(run: Run, _: int) -> float:
    return float(nn.utils.clip_grad_norm_(run.model.parameters(), CLIP / 3))


def _norm_of_the_largest(run: Run, _: int) -> float:
    return float(nn.utils.clip_grad_norm_(run.model.parameters(), CLIP, norm_type=float("inf")))


def _norm_of_some(run: Run, _: int) -> float:
    return float(nn.utils.clip_grad_norm_(run.parameters()[2:], CLIP))


def _norm_of_each(run: Run, _: int) -> list[float]:
    return [float(nn.utils.clip_grad_norm_([p], CLIP)) for p in run.parameters()]


def _norm_one_by_one(run: Run, _: int) -> float:
    return float(nn.utils.clip_grad_norm_(run.model.parameters(), CLIP, foreach=False))


def _norm_twice(run: Run, number: int) -> list[float]:
    return [_norm(run, number), _norm(run, number)]


def _norm_by_parts(run: Run, _: int) -> float:
    norm = nn.utils.get_total_norm([p.grad for p in run.parameters()])
    nn.utils.clip_grads_with_norm_(run.model.parameters(), CLIP, norm)
    return float(norm)


def _value(run: Run, _: int) -> None:
    nn.utils.clip_grad_value_(run.model.parameters(), 0.01)


def _read(run: Run, _: int) -> Any:
    return [p.grad.detach().clone() for p in run.parameters()]


def _log_norm(run: Run, _: int) -> float:
    return sum(float(p.grad.norm()) ** 2 for p in run.parameters()) ** 0.5


def _log_norm_of_data(run: Run, _: int) -> float:
    return sum(float(p.grad.data.norm()) ** 2 for p in run.parameters()) ** 0.5


def _read_transposed(run: Run, _: int) -> Any:
    return [p.grad.T.clone() for p in run.parameters() if p.dim() == 2]


def _clip_data(run: Run, _: int) -> float:
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad.data) for p in run.parameters()]))
    for p in run.parameters():
        p.grad.data.mul_(torch.clamp(CLIP / (norm + 1e-6), max=1.0))
    return float(norm.data)


def _divide(run: Run, _: int) -> None:
    for p in run.parameters():
        p.grad.div_(3)


def _divide_all(run: Run, _: int) -> None:
    torch._foreach_mul_([p.grad for p in run.parameters()], 0.5)


def _replace(run: Run, _: int) -> None:
    for p in run.parameters():
        p.grad = torch.ones_like(p) / 10


def _forget_one(run: Run, _: int) -> None:
    run.parameters()[2].grad = None


def _noise(run: Run, number: int) -> None:
    torch.manual_seed(number)
    for p in run.parameters():
        p.grad.add_(torch.randn_like(p) / 100)


def _zero_before_step(run: Run, number: int) -> None:
    if number == 2:
        run.optimizer.zero_grad()


def _zeros_before_step(run: Run, number: int) -> None:
    if number == 2:
        run.optimizer.zero_grad(set_to_none=False)


def _zeros_dropped_before_step(run: Run, number: int) -> None:
    if number == 2:
        run.optimizer.zero_grad(set_to_none=False)
        run.optimizer.zero_grad()


def _centralise(run: Run, _: int) -> None:
    for p in run.parameters():
        if p.dim() > 1:
            p.grad.sub_(p.grad.mean(1, keepdim=True))


def _has_gradients(run: Run, _: int) -> list[bool]:
    return [p.grad is not None and p.grad.shape == p.shape and p.grad.dtype == p.dtype for p in run.parameters()]


DECLARED = {"clip_norm": CLIP}
for _name, _act, _more in (
    ("clips_undeclared", _norm, {}),
    ("clips", _norm, DECLARED),
    ("clips_declared_in_some_steps", _norm_in_some_steps, DECLARED),
    ("clips_declared_and_not_done", lambda run, number: None, DECLARED),
    ("clips_another_norm", _norm_of_another_size, DECLARED),
    ("clips_the_largest", _norm_of_the_largest, {}),
    ("clips_the_largest_declared", _norm_of_the_largest, DECLARED),
    ("clips_some", _norm_of_some, {}),
    ("clips_some_declared", _norm_of_some, DECLARED),
    ("clips_each", _norm_of_each, {}),
    ("clips_one_by_one", _norm_one_by_one, DECLARED),
    ("clips_by_parts", _norm_by_parts, DECLARED),
    ("clips_values", _value, {}),
    ("clips_values_declared", _value, DECLARED),
    ("reads_gradients", _read, {}),
    ("logs_the_norm", _log_norm, {}),
    ("logs_the_norm_of_data", _log_norm_of_data, {}),
    ("reads_gradients_transposed", _read_transposed, {}),
    ("clips_data_declared", _clip_data, DECLARED),
    ("clips_data_undeclared", _clip_data, {}),
    ("divides_gradients", _divide, {}),
    ("divides_gradients_all_at_once", _divide_all, {}),
    ("replaces_gradients", _replace, {}),
    ("forgets_one_gradient", _forget_one, {}),
    ("adds_noise", _noise, {}),
    ("zeroes_before_the_step", _zero_before_step, {}),
    ("has_zeros_before_the_step", _zeros_before_step, {}),
    ("has_zeros_and_drops_them_before_the_step", _zeros_dropped_before_step, {}),
    ("centralises_gradients", _centralise, {}),
    ("looks_whether_there_are_gradients", _has_gradients, {}),
):
    enter(_name, lambda e, act=_act, more=_more: _between(e, act, **more), group="gradients")


# The second time finds a norm that is smaller than the limit by what torch adds to the norm, and divides by it again.
enter("clips_twice", lambda e: _between(e, _norm_twice, **DECLARED), group="gradients", tolerance=2e-5)


def _zeroes(e: Env, zero: Callable[[Run], Any], *, when: str) -> Values:
    run = e.start(task(optimizer=momentum))
    for _ in range(4):
        if when == "before forward":
            zero(run)
        loss = run.loss()
        if when == "before backward":
            zero(run)
        loss.backward()
        run.optimizer.step()
        if when == "after step":
            zero(run)
    return run.values()


ZEROES: dict[str, Callable[[Run], Any]] = {
    "none": lambda run: run.optimizer.zero_grad(set_to_none=True),
    "zeros": lambda run: run.optimizer.zero_grad(set_to_none=False),
    "none_by_model": lambda run: run.called.zero_grad(),
    "zeros_by_model": lambda run: run.called.zero_grad(set_to_none=False),
    "by_hand": lambda run: [setattr(p, "grad", None) for p in run.parameters()],
    "zeros_of_data": lambda run: [p.grad.data.zero_() for p in run.parameters() if p.grad is not None],
    "zeros_by_hand": lambda run: [p.grad.zero_() for p in run.parameters() if p.grad is not None],
}
for _name, _zero in ZEROES.items():
    for _when in ("before forward", "before backward", "after step"):
        enter(
            f"zeroes_{_name}_{_when.replace(' ', '_')}",
            lambda e, zero=_zero, when=_when: _zeroes(e, zero, when=when),
            group="gradients",
        )


@behaviour
def never_zeroes(e: Env) -> Values:
    run = e.start(task())
    for _ in range(3):
        run.loss().backward()
        run.optimizer.step()
    return run.values()


@behaviour
def gradients_are_the_average(e: Env) -> Values:
    run = e.start(task())
    run.loss().backward()
    return {"equal": all(e.all_equal(p.grad) for p in run.parameters()), **run.grads()}


@behaviour
def gradients_are_none_before_backward(e: Env) -> Values:
    run = e.start(task())
    before = [p.grad is None for p in run.parameters()]
    run.step()
    run.optimizer.zero_grad()
    return {"before": before, "after": [p.grad is None for p in run.parameters()], **run.values()}


@behaviour
def gradients_before_parallelize(e: Env) -> Values:
    """The model has gradients of the script's own before it is made parallel, and they are not zeroed."""
    run = e.run(task())
    run.loss().backward()
    run.start()
    run.optimizer.zero_grad()
    return {"losses": run.steps(), **run.values()}


@behaviour
def gradients_as_views(e: Env) -> Values:
    run = e.start(task(optimizer=momentum), ddp={"gradient_as_bucket_view": True})
    return {"losses": run.steps(), **run.values()}


@behaviour
def static_graph(e: Env) -> Values:
    run = e.start(task(optimizer=momentum), ddp={"static_graph": True})
    return {"losses": run.steps(6), **run.values()}


@behaviour
def keeps_gradients_of_before(e: Env) -> Values:
    """Gradients of the step before, cloned, are compared with those of this step (as for their similarity)."""
    run = e.start(task())
    before, found = None, []
    for _ in range(4):
        run.optimizer.zero_grad()
        run.loss().backward()
        now = torch.cat([p.grad.flatten() for p in run.parameters()])
        found.append(0.0 if before is None else float(now @ before))
        before = now
        run.optimizer.step()
    return {"found": found, **run.values()}


# Mixed precision.


def _single() -> nn.Module:
    return net().float()


def _singles(g: torch.Generator) -> Tensor:
    return numbers(g).float()


def _scales(e: Env, *, clips: bool = False, optimizer: Any = adam, steps: int = 6, **more: Any) -> Values:
    """Gradients of one rank overflow in the second step, which all leave out."""
    run = e.start(task(_single, optimizer, _singles, **more))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scales = []
    for number in range(steps):
        run.optimizer.zero_grad()
        batch = run.batch() * (float("inf") if (number, e.rank) == (1, 1) else 1)
        scaler.scale(run.loss(batch)).backward()
        if clips:
            scaler.unscale_(run.optimizer)
            nn.utils.clip_grad_norm_(run.model.parameters(), CLIP)
        scaler.step(run.optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {"scales": scales, **run.values()}


@behaviour(tolerance=1e-4)
def reads_gradients_that_are_scaled_and_clipped(e: Env) -> Values:
    """It keeps a view of a gradient over unscaling and clipping, by a scale that is no power of two."""
    run = e.start(task(_single, adam, _singles, clip_norm=CLIP, loss_scaling=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_interval=100)
    norms = []
    for _ in range(3):
        run.optimizer.zero_grad()
        scaler.scale(run.loss()).backward()
        view = next(iter(run.parameters())).grad.view(-1)
        norms.append(view.square().sum().item())
        scaler.unscale_(run.optimizer)
        norms.append(view.square().sum().item())
        nn.utils.clip_grad_norm_(run.model.parameters(), CLIP)
        norms.append(view.square().sum().item())
        scaler.step(run.optimizer)
        scaler.update()
    return {"norms": norms, **run.values()}


def fused_adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.02, fused=True)


for _name, _options in {
    "scales_undeclared": {},
    "scales": {"loss_scaling": True},
    "scales_by_momentum": {"loss_scaling": True, "optimizer": momentum},
    "scales_fused": {"loss_scaling": True, "optimizer": fused_adam},
    "scales_and_clips": {"loss_scaling": True, "clips": True, "clip_norm": CLIP},
    "scales_and_clips_undeclared": {"clips": True},
}.items():
    enter(_name, lambda e, options=_options: _scales(e, **options), group="gradients", tolerance=1e-4)


@behaviour(tolerance=1e-4)
def scaling_declared_and_not_done(e: Env) -> Values:
    run = e.start(task(_single, adam, _singles, loss_scaling=True))
    run.steps()
    return run.values()


@behaviour(tolerance=1e-4)
def scaler_is_off(e: Env) -> Values:
    run = e.start(task(_single, adam, _singles))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(4):
        run.optimizer.zero_grad()
        scaler.scale(run.loss()).backward()
        scaler.unscale_(run.optimizer)
        scaler.step(run.optimizer)
        scaler.update()
    return run.values()


@behaviour(tolerance=1e-4)
def scaling_with_accumulation(e: Env) -> Values:
    run = e.start(task(_single, momentum, _singles, loss_scaling=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(3):
        run.optimizer.zero_grad()
        with run.no_sync():
            scaler.scale(run.loss()).backward()
        scaler.scale(run.loss()).backward()
        scaler.step(run.optimizer)
        scaler.update()
    return run.values()


def _autocasts(e: Env, dtype: torch.dtype, *, accumulates: bool = False) -> Values:
    run = e.start(task(_single, momentum, _singles))
    for _ in range(4):
        run.optimizer.zero_grad()
        if accumulates:
            with run.no_sync(), torch.autocast("cpu", dtype):
                loss = run.loss()
            with run.no_sync():
                loss.backward()
        with torch.autocast("cpu", dtype):
            loss = run.loss()
        loss.backward()
        run.optimizer.step()
    return run.values()


@behaviour(tolerance=2e-3)
def autocast(e: Env) -> Values:
    return _autocasts(e, torch.bfloat16)


@behaviour(tolerance=2e-3)
def autocast_in_float16(e: Env) -> Values:
    return _autocasts(e, torch.float16)


@behaviour(tolerance=2e-3)
def autocast_with_accumulation(e: Env) -> Values:
    return _autocasts(e, torch.bfloat16, accumulates=True)
