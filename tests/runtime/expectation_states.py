"""Scripts that save, load, copy, fail, or do with gradients, groups and buffers what others do not."""

import contextlib
import copy
import io
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from expectation_script import NUM_STEPS, Script, Values
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

_SIZES = itertools.count(1)


def state_dict_is_bare(script: Script) -> Values:
    """In the midst of training, without a word to the engine."""
    script.start().steps()
    return {name: value.clone() for name, value in script.model.state_dict().items()}


def state_dict_of_layers(script: Script) -> Values:
    script.start().steps()
    return {
        f"{name}.{key}": value.clone()
        for name, layer in script.model.named_children()
        for key, value in layer.state_dict().items()
    }


def resumes(script: Script) -> Values:
    """A checkpoint is written half way, training goes on, then the checkpoint is loaded: it is as if that never was."""
    script.start().steps(2)
    file = io.BytesIO()
    torch.save({"model": script.model.state_dict(), "optimizer": script.optimizer.state_dict()}, file)
    batches = script.batches.get_state()
    script.steps(2)
    file.seek(0)
    saved = torch.load(file)
    script.model.load_state_dict(saved["model"])
    script.optimizer.load_state_dict(saved["optimizer"])
    script.batches.set_state(batches)
    script.steps(2)
    return script.values()


def resumes_in_a_new_model(script: Script) -> Values:
    """As after a restart: another model and another optimizer load what was saved."""
    script.start().steps(2)
    model, optimizer = copy.deepcopy(script.model.state_dict()), copy.deepcopy(script.optimizer.state_dict())
    script.stop()
    torch.manual_seed(77)
    script.model = script.task.model()
    script.optimizer = script.task.optimizer(script.model.parameters())
    script.model.load_state_dict(model)
    script.optimizer.load_state_dict(optimizer)
    script.start().steps(2)
    return script.values()


def loads_a_model(script: Script) -> Values:
    """Parameters of elsewhere (another world size: they are the same) are loaded in the midst of training."""
    script.start().steps(2)
    torch.manual_seed(99)
    script.model.load_state_dict(script.task.model().state_dict())
    script.steps(2)
    return script.values()


def averages(script: Script) -> Values:
    """Exponential moving averages, taken after `drain`."""
    script.start()
    average = AveragedModel(script.model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for _ in range(NUM_STEPS):
        script.step()
        script.drain()
        average.update_parameters(script.model)
    return {name: value.clone() for name, value in average.module.state_dict().items()}


def averages_at_once(script: Script) -> Values:
    """The same without `drain`, by `_foreach` functions: an average waits for the updates that it reads."""
    script.start()
    average = AveragedModel(script.model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for _ in range(NUM_STEPS):
        script.step()
        average.update_parameters(script.model)
    return {name: value.clone() for name, value in average.module.state_dict().items()}


def clamps(script: Script) -> Values:
    """Parameters are clamped after each step."""
    return _clamps(script, lambda parameter: parameter)


def clamps_data(script: Script) -> Values:
    """The same of `p.data`, as the first Wasserstein GANs did it."""
    return _clamps(script, lambda parameter: parameter.data)


def clamps_after_compiling(script: Script) -> Values:
    """The same after something else was compiled in the process."""
    return _clamps(script, lambda parameter: parameter.data, compiles=True)


def _clamps(script: Script, of: Callable[[Tensor], Tensor], *, compiles: bool = False) -> Values:
    script.start()
    for _ in range(NUM_STEPS):
        script.step()
        if compiles:
            # A shape that was compiled before would not be compiled again.
            torch.compile(lambda x: x + 1, backend="eager", dynamic=False)(torch.ones(next(_SIZES)))
        with torch.no_grad():
            for parameter in script.model.parameters():
                of(parameter).clamp_(-0.2, 0.2)
    return script.values()


def clamps_in_forward(script: Script) -> Values:
    """A layer clamps its parameters in each of its forward passes."""

    def clamp(layer: nn.Module, _: Any) -> None:
        for parameter in layer.parameters():
            parameter.data.clamp_(-0.2, 0.2)

    script.model[0].register_forward_pre_hook(clamp)  # type: ignore[index,union-attr]
    script.start().steps()
    return script.values()


def keeps_data(script: Script) -> Values:
    """Tensors that share the parameters' memory are made before training, and read after each step."""
    kept = {name: parameter.data.view(-1) for name, parameter in script.model.named_parameters()}
    script.start()
    average = {name: value.clone() for name, value in kept.items()}
    for _ in range(NUM_STEPS):
        script.step()
        for name, value in kept.items():
            average[name] = 0.5 * average[name] + 0.5 * value
    return average


def copies(script: Script) -> Values:
    """A copy and a pickled model, made without a word to the engine; both are ordinary models."""
    script.start().steps(2)
    copied = copy.deepcopy(script.model)
    file = io.BytesIO()
    torch.save(script.model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    script.steps(1)
    found = {}
    for name, model in {"copied": copied, "loaded": loaded}.items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(3)
        script.task.loss(model, script.task.batch(torch.Generator().manual_seed(3))).backward()
        optimizer.step()
        found |= {f"{name}.{key}": value for key, value in model.state_dict().items()}
    return {**found, **script.values()}


def _fails(script: Script, where: str, *, at: int) -> Values:
    """A layer fails in the first and the third step, on all ranks; the script goes on with the next one."""
    fails = False

    def fault(_: nn.Module, __: Any, output: Tensor) -> None:
        if fails and where == "forward":
            raise ValueError("the user's own error")
        if fails:
            output.register_hook(_raise)

    script.model[at].register_forward_hook(fault)  # type: ignore[index,union-attr]
    script.start()
    for number in range(NUM_STEPS):
        fails = number in {0, 2}
        with contextlib.suppress(ValueError):
            script.step()
    return script.values()


def _raise(_: Tensor) -> None:
    raise ValueError("the user's own error")


def fails_in_forward(script: Script) -> Values:
    return _fails(script, "forward", at=1)


def fails_before_gradients(script: Script) -> Values:
    """Backward fails before there was any gradient."""
    return _fails(script, "backward", at=2)


def fails_among_gradients(script: Script) -> Values:
    """Backward fails when the last layer has its gradients."""
    return _fails(script, "backward", at=1)


def never_zeroes(script: Script) -> Values:
    script.start()
    for _ in range(NUM_STEPS):
        script.loss().backward()
        script.optimizer.step()
    return script.values()


def zeroes_in_place(script: Script) -> Values:
    script.start()
    for number in range(NUM_STEPS):
        loss = script.loss()
        script.optimizer.defaults["foreach"] = number == 1
        if number % 2:
            script.optimizer.zero_grad(set_to_none=False)
        else:
            script.model.zero_grad(set_to_none=False)
        loss.backward()
        script.optimizer.step()
    return script.values()


def zeroes_after_backward(script: Script) -> Values:
    """The gradient is thrown away before the step: nothing may move."""
    script.start()
    script.step()
    script.optimizer.zero_grad()
    script.loss().backward()
    script.optimizer.zero_grad()
    script.optimizer.step()
    return script.values()


def zeroes_and_steps(script: Script) -> Values:
    """The gradient is set to zero before the step: momentum and decay move what they move."""
    script.start()
    script.step()
    script.optimizer.zero_grad()
    script.loss().backward()
    script.optimizer.zero_grad(set_to_none=False)
    script.optimizer.step()
    return script.values()


def throws_one_away(script: Script) -> Values:
    """One gradient of several is thrown away before the step."""
    script.start()
    script.step()
    script.optimizer.zero_grad()
    script.loss().backward()
    next(script.model.parameters()).grad = None
    script.optimizer.step()
    return script.values()


def steps_without_backward(script: Script) -> Values:
    """A step without gradients moves nothing."""
    script.start().steps(2)
    script.optimizer.zero_grad()
    script.optimizer.step()
    return script.values()


def sets_a_gradient(script: Script) -> Values:
    """The user puts another gradient in the place of the one that came."""
    script.start()
    for _ in range(NUM_STEPS):
        script.optimizer.zero_grad()
        script.loss().backward()
        for parameter in script.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        script.optimizer.step()
    return script.values()


def uses_a_closure(script: Script) -> Values:
    """Steps whose closures make the passes, after a usual one, and one whose closure only says the loss."""
    script.start()
    script.step()
    for _ in range(NUM_STEPS):

        def closure() -> Any:
            script.optimizer.zero_grad()
            loss = script.loss()
            loss.backward()
            return loss

        assert script.optimizer.step(closure) is not None
    script.optimizer.zero_grad()
    loss = script.loss()
    loss.backward()
    assert script.optimizer.step(lambda: loss) is loss
    return script.values()


def two_at_once(script: Script) -> Values:
    """Two models in turn, and a loss of both."""
    other = Script(script.task.name, script.bundle, seed=9, **script.options)
    script.start()
    other.start()
    for _ in range(2):
        script.step()
        other.step()
    for one in (script, other):
        one.optimizer.zero_grad()
    (script.loss() + 2 * other.loss()).backward()
    for one in (script, other):
        one.optimizer.step()
    values = {**script.values("first."), **other.values("second.")}
    other.stop()
    return values


def again(script: Script) -> Values:
    """Training that is parallel, released and parallel again."""
    script.start().steps(2)
    script.stop()
    script.start().steps(2)
    return script.values()


def adds_a_group(script: Script) -> Values:
    """A layer is left to a group that is added in the midst of training."""
    layers = list(script.model.children())
    script.optimizer = torch.optim.Adam(layers[0].parameters(), lr=0.02)
    script.start().step()
    script.optimizer.add_param_group({"params": list(layers[-1].parameters())})
    script.steps(2)
    return script.values()


def thaws(script: Script) -> Values:
    """A frozen layer is trained from some step on."""
    script.start().step()
    script.model.frozen.requires_grad_()  # type: ignore[operator,union-attr]
    script.step()
    return script.values()


def buffers(script: Script) -> dict[str, Tensor]:
    """Statistics of batches as each rank has them, in training with accumulation and evaluation between steps."""
    script.start()
    found: dict[str, Tensor] = {}
    for number in range(NUM_STEPS):
        script.optimizer.zero_grad()
        with script.no_sync():
            script.loss().backward()
        script.loss().backward()
        script.optimizer.step()
        script.drain()
        found[f"{number}.parameter"] = script.model[0].weight.detach().clone()  # type: ignore[index,union-attr]
        # Of the first rank, which others take them from; what others have until the next pass is theirs.
        for name, buffer in script.model.named_buffers():
            mine = buffer.detach().clone().double()
            dist.broadcast(mine, 0)
            found[f"{number}.{name}"] = mine
    return found


def buffers_of_all(script: Script) -> dict[str, Tensor]:
    """What each rank has when a pass has begun, seen from a layer within: its own after one without synchronisation."""
    script.start()
    found: dict[str, Tensor] = {}

    def look(module: nn.Module, _: Any) -> None:
        mean: Any = module.running_mean
        everyones = [torch.empty_like(mean) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, mean)
        found[f"{len(found)}"] = torch.stack(everyones)

    hook = script.model[1].register_forward_pre_hook(look)  # type: ignore[index,union-attr]
    for _ in range(NUM_STEPS):
        script.optimizer.zero_grad()
        with script.no_sync():
            script.loss().backward()
        script.loss().backward()
        script.optimizer.step()
    hook.remove()
    return found
