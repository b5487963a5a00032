"""Scripts whose steps are made in different ways."""

import torch
from expectation_script import NUM_STEPS, Script, Values
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.checkpoint import checkpoint


def plain(script: Script) -> Values:
    script.start().steps()
    return script.values()


def accumulates(script: Script) -> Values:
    script.start()
    for _ in range(NUM_STEPS):
        script.optimizer.zero_grad()
        for _ in range(2):
            with script.no_sync():
                script.loss().backward()
        script.loss().backward()
        script.optimizer.step()
    return script.values()


def clips(script: Script) -> Values:
    script.start()
    for _ in range(NUM_STEPS):
        script.optimizer.zero_grad()
        script.loss().backward()
        nn.utils.clip_grad_norm_(script.model.parameters(), 0.05)
        script.optimizer.step()
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


def scales(script: Script) -> Values:
    """A loss scaler that meets an overflow on one rank, skips the step, and goes on with half the scale."""
    script.start()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for number in range(NUM_STEPS + 1):
        script.optimizer.zero_grad()
        batch = script.batch()
        if number == 1 and script.rank == 1:
            batch = batch * float("inf")
        scaler.scale(script.task.loss(script.called, batch)).backward()
        scaler.step(script.optimizer)
        scaler.update()
    return {**script.values(), "scale": torch.tensor(scaler.get_scale())}


def scales_and_clips(script: Script) -> Values:
    script.start()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(NUM_STEPS):
        script.optimizer.zero_grad()
        scaler.scale(script.loss()).backward()
        scaler.unscale_(script.optimizer)
        nn.utils.clip_grad_norm_(script.model.parameters(), 0.05)
        scaler.step(script.optimizer)
        scaler.update()
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
