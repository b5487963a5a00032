"""A replayed model spec: its variables by name, its gradients in the recorded order, its time and no less."""

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from autosync.runtime.local.factors import KnowsFactors
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.model_file import load_model
from autosync.specs.profile.optimizer import optimizer_spec
from autosync.specs.task_run import build_model, build_optimizer, compute_loss, draw_batch, run_backward, step_optimizer
from autosync.specs.use_sample import UseSample
from autosync.trials.replay import replay_task


def _small(**changes: object) -> ModelSpec:
    """Names of nested modules, a sparse embedding, gradients that are ready in another order than reversed use."""
    variables = (
        Variable(
            name="table.weight",
            shape=(50, 4),
            kind="embedding",
            sparse=True,
            touched_rows=7.0,
            max_touched_rows=9,
            use=0,
            ready=3,
        ),
        Variable(name="stack.0.weight", shape=(8, 4), use=1, ready=1),
        Variable(name="stack.0.bias", shape=(8,), use=1, ready=2),
        Variable(name="scale", shape=(), use=2, ready=0),
    )
    timeline = Timeline(
        device="cpu",
        source="computed",
        forward=tuple(
            Segment(module=names[0].rpartition(".")[0], seconds=0.002, variables=names)
            for names in (("table.weight",), ("stack.0.weight", "stack.0.bias"), ("scale",))
        ),
        backward=(
            Segment(module="", seconds=0.002, variables=("scale",)),
            Segment(module="stack.0", seconds=0.004, variables=("stack.0.weight", "stack.0.bias")),
            Segment(module="table", seconds=0.002, variables=("table.weight",)),
        ),
        optimizer=(Segment(module="", seconds=0.004),),
    )
    spec = ModelSpec(name="small", optimizer=OptimizerSpec(name="Adam"), variables=variables, timeline=timeline)
    return replace(spec, **changes)  # type: ignore[arg-type]


def _steps(spec: ModelSpec, count: int) -> tuple[torch.nn.Module, list[float], list[str]]:
    """The model after some steps, the seconds of each, and the order in which gradients came in the last one."""
    task = replay_task(spec)
    model = build_model(task)
    optimizer = build_optimizer(task, model.parameters())
    order: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    generator = torch.Generator().manual_seed(0)
    seconds = []
    for _ in range(count):
        order.clear()
        batches = [draw_batch(task, generator) for _ in range(task.accumulation_steps)]
        start = time.perf_counter()
        optimizer.zero_grad()
        for batch in batches:
            run_backward(task, compute_loss(task, model, batch))
        step_optimizer(task, optimizer)
        seconds.append(time.perf_counter() - start)
    return model, seconds, order


@pytest.mark.parametrize("spec", [_small(), load_model("resnet18"), load_model("ncf")], ids=lambda spec: spec.name)
def test_variables_and_the_order_of_their_gradients_are_the_specs(spec: ModelSpec) -> None:
    model, _, order = _steps(replace(spec, timeline=spec.timeline.dilated(1e-3)), 1)
    assert order == [variable.name for variable in sorted(spec.variables, key=lambda variable: variable.ready)]
    parameters = dict(model.named_parameters())
    assert set(parameters) == {variable.name for variable in spec.variables}
    for variable in spec.variables:
        gradient = parameters[variable.name].grad
        assert gradient is not None
        assert tuple(gradient.shape) == variable.shape == tuple(parameters[variable.name].shape)
        assert str(gradient.dtype) == f"torch.{variable.dtype}"
        assert gradient.is_sparse == variable.sparse
        if variable.sparse:
            assert gradient.coalesce().indices().shape[1] == round(variable.touched_rows or 0)


def test_a_step_takes_the_recorded_time_and_no_less() -> None:
    """Less would be wrong on any machine; how much more depends on it."""
    spec = _small()
    _, seconds, _ = _steps(spec, 5)
    assert min(seconds) > 0.9 * spec.step_seconds
    twice = _small(accumulation_steps=2)
    assert twice.step_seconds == pytest.approx(0.032)
    _, seconds, _ = _steps(twice, 3)
    assert min(seconds) > 0.9 * twice.step_seconds


def test_large_gradients_are_handed_out_without_a_copy() -> None:
    task = replay_task(_small())
    model = build_model(task)
    batch = draw_batch(task, torch.Generator().manual_seed(0))
    places = set()
    for _ in range(3):
        model.zero_grad()
        run_backward(task, compute_loss(task, model, batch))
        gradient = model.get_parameter("stack.0.weight").grad
        assert gradient is not None
        places.add(gradient.data_ptr())
    assert len(places) == 1


def test_gradients_stay_finite_however_long_one_accumulates() -> None:
    model, _, _ = _steps(replace(_small(accumulation_steps=8), timeline=_small().timeline.dilated(1e-3)), 40)
    gradient = model.get_parameter("stack.0.weight").grad
    assert gradient is not None
    assert gradient.abs().max() <= 1


def test_the_optimizer_stands_for_the_specs_and_takes_its_share_of_the_time() -> None:
    spec = _small()
    task = replay_task(spec)
    parameters = [build_model(task).get_parameter("stack.0.weight")]
    optimizer = build_optimizer(task, parameters)
    assert optimizer_spec(optimizer) == spec.optimizer
    parameters[0].grad = torch.ones_like(parameters[0])
    start = time.perf_counter()
    step_optimizer(task, optimizer)
    # Seven rows of the table are updated, not all fifty.
    share = 32 / (7 * 4 + 32 + 8 + 1)
    assert time.perf_counter() - start > 0.9 * share * 0.004
    assert not parameters[0].any()


def test_a_linear_layers_weight_has_factors_that_make_up_its_gradient() -> None:
    weight = Variable(name="head.weight", shape=(5, 3), kind="linear", factor_rows=4, use=3, ready=0)
    spec = _small()
    variables = tuple(replace(variable, ready=variable.ready + 1) for variable in spec.variables)
    first = Segment(module="head", seconds=0.0, variables=("head.weight",))
    timeline = replace(
        spec.timeline, forward=(*spec.timeline.forward, first), backward=(first, *spec.timeline.backward)
    )
    task = replay_task(replace(spec, variables=(*variables, weight), timeline=timeline))
    model = build_model(task)
    layer = model.get_submodule("head")
    assert isinstance(layer, KnowsFactors)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    hook = layer.register_factors_hook(lambda inputs, outputs: seen.append((inputs, outputs)))
    batch = draw_batch(task, torch.Generator().manual_seed(0))
    run_backward(task, compute_loss(task, model, batch))
    gradient = model.get_parameter("head.weight").grad
    ((inputs, outputs),) = seen
    assert inputs.shape == (4, 3)
    assert gradient is not None
    assert torch.equal(outputs.t() @ inputs, gradient)
    hook.remove()
    run_backward(task, compute_loss(task, model, batch))
    assert len(seen) == 1


def test_stock_ddp_is_told_which_gradients_are_sparse() -> None:
    """It takes them from embeddings that say so alone, whatever these and the modules within them are called."""
    names = {"table.weight": "blocks.0.rows", "stack.0.weight": "blocks.0.next.weight", "stack.0.bias": "blocks.bias"}
    plain = _small()

    def renamed(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return tuple(replace(one, variables=tuple(names.get(n, n) for n in one.variables)) for one in segments)

    timeline = replace(
        plain.timeline, forward=renamed(plain.timeline.forward), backward=renamed(plain.timeline.backward)
    )
    variables = tuple(replace(variable, name=names.get(variable.name, variable.name)) for variable in plain.variables)
    # Modules are made on the way to their children, too.
    for order in (variables, variables[::-1]):
        spec = replace(plain, variables=order, timeline=timeline)
        model, _, _ = _steps(spec, 1)
        owners = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding) and module.sparse}
        assert owners == {"blocks.0"}
        assert set(dict(model.named_parameters())) == {variable.name for variable in variables}
        assert "(0): _Table(" in repr(model)


def test_a_step_leaves_out_what_the_sampled_ranks_did_not_use() -> None:
    sample = UseSample(groups=(("stack.0.weight", "stack.0.bias"), ("scale",)), steps=(("01", "10"), ("11", "00")))
    spec = _small(use_sample=sample, accumulation_steps=2)
    for rank, expected in ((0, ["01", "00", "01"]), (1, ["10", "11", "10"])):
        task = replay_task(spec, rank=rank, num_ranks=2)
        model, generator = build_model(task), torch.Generator().manual_seed(0)
        called: list[str] = []
        model.get_submodule("stack.0").register_forward_pre_hook(lambda *_, called=called: called.append("stack.0"))
        for step, used in enumerate(expected):
            called.clear()
            model.zero_grad()
            for _ in range(2):
                run_backward(task, compute_loss(task, model, draw_batch(task, generator)))
            got = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
            left = {name for bit, group in zip(used, sample.groups, strict=True) if bit == "0" for name in group}
            assert got == {variable.name for variable in spec.variables} - left, (rank, step)
            assert len(called) == 2 * (used[0] == "1")
