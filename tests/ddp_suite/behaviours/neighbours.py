"""Neighbours of cases that were once wrong: other ways to the same parameters, gradients, layers and processes."""

import gc
import pickle
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from environment import Env, Run, Values, adam, behaviour, enter, momentum, net, sgd, task
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import update_bn

HELD = torch.ones(3, 5, dtype=torch.float64)


def _after_each_step(e: Env, begin: Callable[[Run], Callable[[], Any]], *, before: bool = False, **more: Any) -> Values:
    """What the script looks at after each step; `begin` gets hold of it once, before `parallelize` or after."""
    run = e.run(task(optimizer=momentum, **more))
    if before:
        look = begin(run)
        run.start()
    else:
        run.start()
        look = begin(run)
    found = []
    for _ in range(4):
        run.step()
        found.append(look())
    return {"found": found[1:] if before else found, **run.values()}


def _parameter(run: Run) -> Callable[[], Any]:
    weight = run.model[0].weight
    return lambda: weight.detach().clone()


def _list(run: Run) -> Callable[[], Any]:
    kept = run.parameters()
    return lambda: float(sum(p.detach().sum() for p in kept))


def _data(run: Run) -> Callable[[], Any]:
    data = run.model[0].weight.data
    return data.clone


def _view(run: Run) -> Callable[[], Any]:
    view = run.model[0].weight.detach().view(-1)[:7]
    return view.clone


def _numpy(run: Run) -> Callable[[], Any]:
    array = run.model[0].weight.detach().numpy()
    return lambda: float(array.sum())


def _state_dict_kept(run: Run) -> Callable[[], Any]:
    """A state dict is references: it shows what the parameters are later."""
    state = run.model.state_dict()
    return state["2.weight"].clone


WAYS_TO_READ: dict[str, Callable[[Run], Callable[[], Any]]] = {
    "a_parameter_that_was_kept": _parameter,
    "parameters_that_were_kept": _list,
    "an_alias": _data,
    "a_view": _view,
    "a_numpy_alias": _numpy,
    "a_state_dict_that_was_kept": _state_dict_kept,
    "by_name": lambda run: lambda: run.model.get_parameter("0.weight").detach().clone(),
    "by_state_dict_with_variables": lambda run: (
        lambda: [v.detach().clone() for v in run.model.state_dict(keep_vars=True).values()]
    ),
    "by_the_inner_dict": lambda run: lambda: run.model[0]._parameters["weight"].detach().clone(),
    "by_groups_of_the_optimizer": lambda run: (
        lambda: [p.detach().clone() for p in run.optimizer.param_groups[0]["params"]]
    ),
    "as_text": lambda run: lambda: repr(run.model[4].bias),
    "as_a_list": lambda run: run.model[4].weight.tolist,
    "as_a_number": lambda run: lambda: float(run.model[4].bias),
    "pickled": lambda run: lambda: pickle.loads(pickle.dumps(run.model[4].weight)).detach().clone(),
    "by_norms_of_all": lambda run: lambda: torch.stack(torch._foreach_norm(run.parameters())).detach().clone(),
    "compared": lambda run: lambda: bool((run.model[0].weight > 0.1).any()) and torch.equal(HELD, HELD),
    "by_out_argument": lambda run: (
        lambda: torch.add(run.model[4].bias.detach(), 1, out=torch.empty(1, dtype=torch.float64)).clone()
    ),
    "by_copy_into_another": lambda run: (
        lambda: torch.zeros(6, 5, dtype=torch.float64).copy_(run.model[0].weight.detach())
    ),
}
for _name, _begin in WAYS_TO_READ.items():
    enter(f"reads_{_name}", lambda e, begin=_begin: _after_each_step(e, begin), group="neighbours")
for _name in ("a_parameter_that_was_kept", "an_alias", "a_numpy_alias"):
    enter(
        f"reads_{_name}_before",
        lambda e, begin=WAYS_TO_READ[_name]: _after_each_step(e, begin, before=True),
        group="neighbours",
    )


@behaviour
def reads_by_a_collective(e: Env) -> Values:
    """The script averages parameters over the ranks by itself, which changes nothing if they are equal."""
    run = e.start(task(optimizer=momentum))
    for _ in range(4):
        run.step()
        for p in run.parameters():
            dist.all_reduce(p.data)
            p.data.div_(e.ranks)
    return run.values()


@behaviour
def reads_by_a_broadcast(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    for _ in range(4):
        run.step()
        with torch.no_grad():
            for p in run.parameters():
                dist.broadcast(p, 0)
    return run.values()


@behaviour
def clamps_by_groups_of_the_optimizer(e: Env) -> Values:
    run = e.start(task(optimizer=adam))
    for _ in range(4):
        run.step()
        with torch.no_grad():
            for group in run.optimizer.param_groups:
                torch._foreach_clamp_min_(group["params"], -0.2)
    return run.values()


@behaviour
def statistics_are_made_anew(e: Env) -> Values:
    """`update_bn`: statistics of batches are computed again with the parameters of now."""
    run = e.start(task(lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).double(), momentum))
    run.steps(3)
    update_bn([HELD * k for k in range(1, 4)], run.model)
    return run.values()


@behaviour
def gradients_in_a_flat_buffer(e: Env) -> Values:
    """The script has gradients accumulate in a buffer of its own, and reads that."""
    run = e.start(task())
    flat = torch.zeros(sum(p.numel() for p in run.parameters()), dtype=torch.float64)
    at = 0
    for p in run.parameters():
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    found = []
    for _ in range(3):
        flat.zero_()
        run.loss().backward()
        found.append(flat.clone())
        run.optimizer.step()
    return {"found": found, **run.values()}


@behaviour
def gradients_that_were_kept(e: Env) -> Values:
    """The script gets hold of gradients once and zeroes in place from there on."""
    run = e.start(task())
    run.loss().backward()
    kept = [p.grad for p in run.parameters()]
    run.optimizer.step()
    found = []
    for _ in range(3):
        run.optimizer.zero_grad(set_to_none=False)
        run.loss().backward()
        found.append([g.clone() for g in kept])
        run.optimizer.step()
    return {"found": found, **run.values()}


@behaviour
def gradients_freed_by_a_hook(e: Env) -> Values:
    """A hook on the whole pass's end throws one gradient away: the step leaves that parameter out."""
    run = e.start(task())
    for _ in range(3):
        run.optimizer.zero_grad()
        run.loss().backward()
        run.model[4].bias.grad = None
        run.optimizer.step()
    return run.values()


@behaviour
def two_models_share_a_layer(e: Env) -> Values:
    """Two parallel models with one layer in common, trained in turn."""
    a = e.start(task(optimizer=sgd))
    b = e.run(task(optimizer=sgd), seed=3)
    b.model[2] = a.model[2]
    b.optimizer = sgd(b.model.parameters())
    b.start()
    for _ in range(3):
        a.step()
        b.step()
    return {**a.values("a "), **b.values("b ")}


@behaviour
def a_parallel_model_within_another(e: Env) -> Values:
    """A child is parallel already when its parent is made parallel: under DDP both average, which changes nothing."""

    class Parent(nn.Module):
        def __init__(self, child: nn.Module) -> None:
            super().__init__()
            self.child, self.out = child, nn.Linear(1, 1).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.child(x))

    child = e.start(task(optimizer=sgd))
    run = e.run(task(lambda: Parent(net()), sgd))
    run.model.child = child.model
    run.optimizer = sgd(run.model.parameters())
    run.start()
    run.steps(3)
    return run.values()


@behaviour
def models_left_to_the_collector(e: Env) -> Values:
    """Models that go out of sight without `release`: their engines may run on until the script ends."""
    e.checks_threads = False
    found = {}
    for number in range(4):
        run = e.start(task(optimizer=momentum), seed=number)
        run.steps(2)
        found |= run.values(f"{number} ")
        e.runs.clear()
        run.called = None
        del run
        gc.collect()
    return found


@behaviour
def a_layer_is_replaced(e: Env) -> Values:
    """The head is replaced by one that nobody trains, and the model goes on."""
    run = e.start(task(optimizer=momentum), ddp={"find_unused_parameters": True})
    run.steps(2)
    torch.manual_seed(8)
    run.model[4] = nn.Linear(4, 1).double().requires_grad_(requires_grad=False)
    run.steps(2)
    return run.values()


@behaviour
def a_parametrization_is_added(e: Env) -> Values:
    """Weight norm is put on a layer in the midst of training, by which its parameter gets another name."""
    run = e.start(task(optimizer=momentum), ddp={"find_unused_parameters": True})
    run.steps(2)
    parametrizations.weight_norm(run.model[2])
    run.steps(2)
    return run.values()


@behaviour
def a_frozen_layer_is_loaded(e: Env) -> Values:
    def model() -> nn.Module:
        made = net()
        made[0].requires_grad_(requires_grad=False)
        return made

    run = e.start(task(model, momentum))
    run.steps(2)
    run.model[0].load_state_dict({"weight": torch.ones(6, 5), "bias": torch.zeros(6)})
    run.steps(2)
    return run.values()


@behaviour
def the_model_changes_its_type(e: Env) -> Values:
    """`model.float()` in the midst of training."""
    run = e.start(task(optimizer=sgd))
    run.steps(2)
    run.model.float()
    for _ in range(2):
        run.optimizer.zero_grad()
        run.loss(run.batch().float()).backward()
        run.optimizer.step()
    return run.values()


@behaviour
def interrupted_in_forward(e: Env) -> Values:
    """Ctrl-C in a notebook, on all ranks, and then the loop is started again."""
    run = e.run(task(optimizer=momentum))
    interrupts = [False]

    def interrupt(*_: Any) -> None:
        if interrupts[0]:
            raise KeyboardInterrupt

    run.model[2].register_forward_hook(interrupt)
    run.start()
    run.steps(2)
    interrupts[0] = True
    try:
        run.step()
    except KeyboardInterrupt:
        interrupts[0] = False
    run.steps(2)
    return run.values()


@behaviour
def loads_an_optimizer_of_another_rate(e: Env) -> Values:
    """`load_state_dict` brings learning rate and momentum with it."""
    run = e.start(task(optimizer=momentum))
    run.steps(2)
    other = torch.optim.SGD(net().parameters(), lr=0.001, momentum=0.5)
    run.optimizer.load_state_dict(other.state_dict())
    run.steps(3)
    return run.values()


@behaviour
def clips_and_asks_for_finite_gradients(e: Env) -> Values:
    run = e.start(task(optimizer=momentum, clip_norm=0.05))
    norms = []
    for _ in range(3):
        run.optimizer.zero_grad()
        run.loss().backward()
        norms.append(float(nn.utils.clip_grad_norm_(run.model.parameters(), 0.05, error_if_nonfinite=True)))
        run.optimizer.step()
    return {"norms": norms, **run.values()}


@behaviour
def saves_tensors_elsewhere(e: Env) -> Values:
    """Hooks on saved tensors, as for offloading activations."""
    run = e.start(task(optimizer=momentum))
    for _ in range(4):
        run.optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
            loss = run.loss()
        loss.backward()
        run.optimizer.step()
    return run.values()


@behaviour
def long_pause_between_steps(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    for _ in range(3):
        run.step()
        time.sleep(0.3 if e.rank == 0 else 0.0)
    return run.values()


@behaviour
def clips_with_others_declared(e: Env) -> Values:
    """The norm that is clipped is that of the model's gradients and of one outside of the model."""
    run = e.start(task(optimizer=momentum, clip_norm=0.05))
    other = nn.Parameter(HELD.clone())
    for _ in range(3):
        run.optimizer.zero_grad()
        other.grad = torch.ones_like(other)
        run.loss().backward()
        nn.utils.clip_grad_norm_([*run.parameters(), other], 0.05)
        run.optimizer.step()
    return run.values()
