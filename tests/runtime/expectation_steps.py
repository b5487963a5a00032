"""Scripts whose steps are made in different ways."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from expectation_script import NUM_STEPS, Script, Values
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.checkpoint import checkpoint


def plain(script: Script) -> Values:
    script.start().steps()
    return script.values()


def accumulates(script: Script) -> Values:
    """What accumulates is each rank's own, until the last backward pass of the step."""
    script.start()
    own = []
    for _ in range(NUM_STEPS):
        script.optimizer.zero_grad()
        for _ in range(2):
            with script.no_sync():
                with script.no_sync():
                    pass  # as a library's own helper may do inside the user's
                script.loss().backward()
        gradient = next(script.model.parameters()).grad
        assert gradient is not None, "it is the user's until it is synchronised"
        everyones = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, gradient.clone())
        own.append(torch.stack(everyones))
        script.loss().backward()
        script.optimizer.step()
    return {**script.values(), "own": torch.stack(own)}


def clips(script: Script) -> Values:
    """Gradients are clipped, and the norm that they had is what users log."""
    script.start()
    norms = []
    for _ in range(NUM_STEPS):
        script.optimizer.zero_grad()
        script.loss().backward()
        norms.append(nn.utils.clip_grad_norm_(script.model.parameters(), 0.05))
        script.optimizer.step()
    return {**script.values(), "norms": torch.stack(norms)}


def _clips_once(script: Script, clip: Callable[[], Any]) -> Values:
    script.start()
    script.loss().backward()
    clip()
    script.optimizer.step()
    return script.values()


def clips_otherwise(script: Script) -> Values:
    return _clips_once(script, lambda: nn.utils.clip_grad_norm_(script.model.parameters(), 0.01))


def clips_some(script: Script) -> Values:
    return _clips_once(script, lambda: nn.utils.clip_grad_norm_(list(script.model.parameters())[1:], 0.05))


def _other() -> nn.Parameter:
    """A parameter outside of the model, with a gradient."""
    made = nn.Parameter(torch.ones(3))
    made.grad = torch.ones(3)
    return made


def clips_with_others(script: Script) -> Values:
    def clip() -> None:
        nn.utils.clip_grad_norm_([_other(), *script.model.parameters()], 0.05, foreach=True)

    return _clips_once(script, clip)


def clips_others_alike(script: Script) -> Values:
    """The norm is that of the model's gradients, and others are multiplied as they are."""
    other = _other()

    def clip() -> None:
        parameters = list(script.model.parameters())
        norm = nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])
        nn.utils.clip_grads_with_norm_([other, *parameters], 0.05, norm, foreach=True)

    values = _clips_once(script, clip)
    assert other.grad is not None
    return {**values, "other": other.grad}


def clips_some_steps(script: Script) -> Values:
    """The script clips in every second step alone."""
    script.start()
    for number in range(NUM_STEPS):
        script.optimizer.zero_grad()
        script.loss().backward()
        if number % 2:
            nn.utils.clip_grad_norm_(script.model.parameters(), 0.05)
        script.optimizer.step()
    return script.values()


def clips_the_largest(script: Script) -> Values:
    return _clips_once(script, lambda: nn.utils.clip_grad_norm_(script.model.parameters(), 0.05, norm_type=torch.inf))


def clips_values(script: Script) -> Values:
    return _clips_once(script, lambda: nn.utils.clip_grad_value_(script.model.parameters(), 0.05))


def logs_a_norm(script: Script) -> Values:
    def log() -> Any:
        return float(torch.linalg.vector_norm(next(script.model.parameters()).grad))  # type: ignore[arg-type]

    return _clips_once(script, log)


def clips_after_the_step(script: Script) -> Values:
    script.start().step()
    nn.utils.clip_grad_norm_(script.model.parameters(), 0.05)
    return script.values()


def autocasts(script: Script) -> Values:
    script.start()
    for _ in range(NUM_STEPS):
        script.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = script.loss()
        loss.backward()
        script.optimizer.step()
    return script.values()


def _scales(script: Script, scaler: torch.amp.GradScaler, *, clips: bool = False) -> Values:
    """Gradients of one rank overflow in the second step, which all leave out; the scale is halved, and grows again."""
    script.start()
    scales = []
    for number in range(NUM_STEPS + 2):
        script.optimizer.zero_grad()
        batch = script.batch()
        if number == 1 and script.rank == 1:
            batch = batch * float("inf")
        scaler.scale(script.task.loss(script.called, batch)).backward()
        if clips:
            scaler.unscale_(script.optimizer)
            nn.utils.clip_grad_norm_(script.model.parameters(), 0.05)
        scaler.step(script.optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {**script.values(), "scales": torch.tensor(scales)}


def scales(script: Script) -> Values:
    return _scales(script, torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3))


def scales_and_clips(script: Script) -> Values:
    return _scales(script, torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3), clips=True)


def scaler_is_off(script: Script) -> Values:
    """A scaler that does nothing, in a script that may scale."""
    script.start()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(NUM_STEPS):
        script.optimizer.zero_grad()
        scaler.scale(script.loss()).backward()
        scaler.unscale_(script.optimizer)
        nn.utils.clip_grad_norm_(script.model.parameters(), 0.05)
        scaler.step(script.optimizer)
        scaler.update()
    return script.values()


def scales_until_it_fits(script: Script) -> Values:
    """In float16, which the first scales are too large for: no number is put in by hand."""
    script.start()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=3)
    scales = []
    for _ in range(3 * NUM_STEPS):
        script.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = script.loss()
        scaler.scale(loss).backward()
        scaler.step(script.optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales[0] < 2.0**18, "it was too large"
    assert scales[-1] > min(scales), "and then it was not"
    return {**script.values(), "scales": torch.tensor(scales)}


def clips_before_unscaling(script: Script) -> Values:
    """The norm that is clipped is that of scaled gradients."""
    script.start()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(script.loss()).backward()
    nn.utils.clip_grad_norm_(script.model.parameters(), 0.05)
    scaler.step(script.optimizer)
    return script.values()


def schedules(script: Script) -> Values:
    """Learning rates and momenta (betas) that change in every step."""
    script.start()
    scheduler = OneCycleLR(script.optimizer, max_lr=0.05, total_steps=NUM_STEPS + 1)
    for _ in range(NUM_STEPS):
        script.step()
        scheduler.step()
        script.optimizer.param_groups[0]["weight_decay"] /= 2
    return script.values()


def several_forwards(script: Script) -> Values:
    script.start()
    for _ in range(NUM_STEPS):
        script.optimizer.zero_grad()
        losses = [script.loss() for _ in range(3)]
        sum(losses).backward()
        script.optimizer.step()
    return script.values()


def uneven(script: Script) -> Values:
    """Ranks have batches of other sizes, other ones in each step."""
    script.start()
    for number in range(NUM_STEPS):
        script.optimizer.zero_grad()
        batch = script.batch()[: 1 + (number + script.rank) % 3]
        script.task.loss(script.called, batch).backward()
        script.optimizer.step()
    return script.values()


def _compiled(script: Script, backend: str, *, first: bool) -> Values:
    """A model that is compiled, before it is made parallel or after."""
    torch._dynamo.reset()
    if first:
        # It has been called, and so compiled, already.
        called = torch.compile(script.model, backend=backend)
        with torch.no_grad():
            called(script.batch())
        script.start()
        if script.is_stock:
            called = torch.compile(script.called, backend=backend)
    else:
        script.start()
        called = torch.compile(script.called, backend=backend)
    script.called = called
    for _ in range(NUM_STEPS):
        script.optimizer.zero_grad()
        script.loss().backward()
        script.optimizer.step()
    values = script.values()
    torch._dynamo.reset()
    return values


def compiled_after(script: Script) -> Values:
    return _compiled(script, "eager", first=False)


def compiled_before(script: Script) -> Values:
    return _compiled(script, "eager", first=True)


def compiled_by_aot(script: Script) -> Values:
    return _compiled(script, "aot_eager", first=False)


def compiled_by_inductor(script: Script) -> Values:
    """By the compiler that `torch.compile` has if nobody says otherwise."""
    torch._inductor.config.compile_threads = 1  # type: ignore[attr-defined]
    return _compiled(script, "inductor", first=False)


def compiled_model_is_given(script: Script) -> Values:
    """The compiled model itself is made parallel."""
    torch._dynamo.reset()
    bare = script.model
    if not script.is_stock:
        script.model = torch.compile(bare, backend="eager")
    script.start()
    script.steps()
    if not script.is_stock:
        script.stop()
        script.model = bare
        return {name: value.detach().clone() for name, value in bare.state_dict().items()}
    return script.values()


def compiled_in_place(script: Script) -> Values:
    """Layers are compiled one by one."""
    torch._dynamo.reset()
    script.start()
    for layer in script.model.children():
        layer.compile(backend="eager")
    script.steps()
    values = script.values()
    torch._dynamo.reset()
    return values


def _checkpoints(script: Script, *, reentrant: bool) -> Values:
    layers = script.model
    assert isinstance(layers, nn.Sequential)

    def forward(x: Tensor) -> Tensor:
        x = x.requires_grad_()
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=reentrant)
        return x

    layers.forward = forward  # type: ignore[method-assign]
    script.start()
    script.steps()
    return script.values()


def checkpoints(script: Script) -> Values:
    return _checkpoints(script, reentrant=False)


def checkpoints_reentrant(script: Script) -> Values:
    return _checkpoints(script, reentrant=True)
