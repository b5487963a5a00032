"""State: of models, optimizers and averages, saved, loaded, copied, cleared and changed by the script."""

import copy
import io
import pickle
from typing import Any

import torch
import torch.distributed as dist
from environment import Env, Run, Values, adam, adamw, behaviour, momentum, net, task
from torch import Tensor, nn


def _through_a_file(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@behaviour
def state_dict_in_the_midst(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    found = {}
    for number in range(3):
        run.step()
        found |= {f"{number} {k}": v.clone() for k, v in run.model.state_dict().items()}
    return found


@behaviour
def state_dict_of_a_layer(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    run.steps(3)
    return {k: v.clone() for k, v in run.model[2].state_dict().items()}


@behaviour
def state_dict_names(e: Env) -> Values:
    """Of the bare model: what a script saves as `model.module.state_dict()` under DDP."""
    run = e.start(task())
    return {"names": list(run.model.state_dict()), "parameters": [n for n, _ in run.model.named_parameters()]}


@behaviour
def state_dict_is_saved_and_loaded(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    run.steps(2)
    saved = _through_a_file(run.model.state_dict())
    run.steps(2)
    run.model.load_state_dict(saved)
    run.steps(2)
    return run.values()


@behaviour
def loads_other_parameters(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    run.steps(2)
    torch.manual_seed(99)
    run.model.load_state_dict(net().state_dict())
    run.steps(2)
    return run.values()


@behaviour
def loads_a_part(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    run.steps(2)
    run.model.load_state_dict({"0.weight": torch.ones(6, 5, dtype=torch.float64)}, strict=False)
    run.steps(2)
    return run.values()


@behaviour
def loads_on_one_rank_before_parallelize(e: Env) -> Values:
    run = e.run(task())
    if e.rank == 0:
        torch.manual_seed(50)
        run.model.load_state_dict(net().state_dict())
    run.start()
    return {"losses": run.steps(), **run.values()}


@behaviour
def optimizer_state_dict(e: Env) -> Values:
    """What a script saves of its optimizer."""
    run = e.start(task(optimizer=adam))
    run.steps(3)
    saved = run.optimizer.state_dict()
    return {f"{k} {name}": v for k, one in saved["state"].items() for name, v in one.items()}


@behaviour
def optimizer_state_read(e: Env) -> Values:
    """What is in `optimizer.state`, by itself."""
    run = e.start(task(optimizer=momentum))
    run.steps(3)
    found = {}
    for name, p in run.model.named_parameters():
        found[name] = run.optimizer.state[p]["momentum_buffer"].clone()
    return found


@behaviour
def resumes(e: Env) -> Values:
    """A checkpoint half way; training goes on; then the checkpoint is loaded."""
    run = e.start(task(optimizer=adam))
    run.steps(2)
    saved = _through_a_file({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()})
    run.steps(2)
    run.model.load_state_dict(saved["model"])
    run.optimizer.load_state_dict(saved["optimizer"])
    run.steps(2)
    return run.values()


def _resumed_elsewhere(e: Env, *, load_first: bool) -> Values:
    first = e.run(task(optimizer=adam))
    first.steps(2)
    # The first rank's checkpoint is what all load.
    saved = [_through_a_file({"model": first.model.state_dict(), "optimizer": first.optimizer.state_dict()})]
    dist.broadcast_object_list(saved, src=0)
    run = e.run(task(optimizer=adam), seed=40)
    if not load_first:
        run.start()
    run.model.load_state_dict(saved[0]["model"])
    run.optimizer.load_state_dict(saved[0]["optimizer"])
    if load_first:
        run.start()
    run.steps(3)
    return run.values()


@behaviour
def resumes_before_parallelize(e: Env) -> Values:
    return _resumed_elsewhere(e, load_first=True)


@behaviour
def resumes_after_parallelize(e: Env) -> Values:
    return _resumed_elsewhere(e, load_first=False)


def _state(e: Env, act: Any, optimizer: Any = adamw) -> Values:
    run = e.start(task(optimizer=optimizer))
    run.steps(3)
    act(run)
    run.steps(3)
    return run.values()


@behaviour
def state_is_cleared(e: Env) -> Values:
    """As ReLoRA and warm restarts have it."""
    return _state(e, lambda run: run.optimizer.state.clear())


@behaviour
def state_of_some_is_cleared(e: Env) -> Values:
    return _state(e, lambda run: run.optimizer.state[run.model[0].weight].clear())


@behaviour
def state_of_some_is_dropped(e: Env) -> Values:
    return _state(e, lambda run: run.optimizer.state.pop(run.model[0].weight, None))


@behaviour
def state_is_replaced(e: Env) -> Values:
    def replace(run: Run) -> None:
        import collections

        run.optimizer.state = collections.defaultdict(dict)

    return _state(e, replace)


@behaviour
def state_is_scaled(e: Env) -> Values:
    def scale(run: Run) -> None:
        for one in run.optimizer.state.values():
            one["momentum_buffer"].mul_(0.5)

    return _state(e, scale, momentum)


@behaviour
def state_is_zeroed(e: Env) -> Values:
    def zero(run: Run) -> None:
        for p in run.parameters():
            run.optimizer.state[p]["exp_avg"].zero_()

    return _state(e, zero)


def _after_each_step(e: Env, act: Any, **more: Any) -> Values:
    run = e.start(task(optimizer=momentum, **more))
    found = []
    for _ in range(5):
        run.step()
        found.append(act(run))
    return {"found": found, **run.values()}


@behaviour
def clamps_parameters(e: Env) -> Values:
    """As WGAN has it."""

    def clamp(run: Run) -> None:
        with torch.no_grad():
            for p in run.parameters():
                p.clamp_(-0.2, 0.2)

    return _after_each_step(e, clamp)


@behaviour
def clamps_data(e: Env) -> Values:
    def clamp(run: Run) -> None:
        for p in run.parameters():
            p.data.clamp_(-0.2, 0.2)

    return _after_each_step(e, clamp)


@behaviour
def replaces_data(e: Env) -> Values:
    def scale(run: Run) -> None:
        for p in run.parameters():
            p.data = p.data * 0.9

    return _after_each_step(e, scale)


@behaviour
def normalises_rows(e: Env) -> Values:
    def normalise(run: Run) -> None:
        with torch.no_grad():
            weight = run.model[2].weight
            weight.div_(weight.norm(dim=1, keepdim=True))

    return _after_each_step(e, normalise)


@behaviour
def reads_parameters(e: Env) -> Values:
    return _after_each_step(e, lambda run: [p.detach().clone() for p in run.parameters()])


@behaviour
def reads_one_number(e: Env) -> Values:
    return _after_each_step(e, lambda run: run.model[4].weight[0, 0].item())


@behaviour
def reads_as_numpy(e: Env) -> Values:
    return _after_each_step(e, lambda run: float(run.model[0].weight.detach().numpy().sum()))


@behaviour
def reads_as_a_vector(e: Env) -> Values:
    return _after_each_step(e, lambda run: nn.utils.parameters_to_vector(run.parameters()).detach().clone())


@behaviour
def reads_in_another_thread(e: Env) -> Values:
    """A thread writes checkpoints while the script waits for it."""
    import threading

    def read(run: Run) -> Any:
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.extend(p.detach().clone() for p in run.parameters()))
        thread.start()
        thread.join()
        return got

    return _after_each_step(e, read)


@behaviour
def writes_a_vector(e: Env) -> Values:
    def write(run: Run) -> None:
        vector = nn.utils.parameters_to_vector(run.parameters()).detach()
        nn.utils.vector_to_parameters(vector * 0.9, run.parameters())

    return _after_each_step(e, write)


@behaviour
def resets_a_layer(e: Env) -> Values:
    def reset(run: Run) -> None:
        torch.manual_seed(4)
        run.model[4].reset_parameters()

    return _after_each_step(e, reset)


@behaviour
def copies_and_pickles(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    run.steps(3)
    copied = copy.deepcopy(run.model)
    pickled = pickle.loads(pickle.dumps(run.model))
    saved = _through_a_file(run.model)
    run.step()
    found = {}
    for name, model in {"copied": copied, "pickled": pickled, "saved": saved}.items():
        model(torch.ones(2, 5, dtype=torch.float64)).sum().backward()
        found |= {f"{name} {k}": v.clone() for k, v in model.state_dict().items()}
        found |= {f"{name} grad {k}": p.grad.clone() for k, p in model.named_parameters()}
    return {**found, **run.values()}


@behaviour
def buffers_of_the_first_rank(e: Env) -> Values:
    """Every rank starts a pass with the first rank's buffers."""
    seen: list[Tensor] = []
    run = e.start(task(lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).double(), momentum))
    run.model[1].register_forward_pre_hook(lambda m, x: seen.append(m.running_mean.clone()))
    run.steps(5)
    return {"seen": seen, "last": run.values()["1.running_mean"], **run.read()}


@behaviour
def buffers_are_each_ranks_own(e: Env) -> Values:
    run = e.run(task(lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).double(), momentum))
    run.start(broadcast_buffers=False)
    run.steps(4)
    return run.values()


@behaviour
def buffers_changed_by_the_script(e: Env) -> Values:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 1)
            self.register_buffer("scale", torch.ones(5))
            self.register_buffer("hidden", torch.zeros(()), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x * self.scale) + self.hidden

    run = e.start(task(lambda: Scaled().double(), momentum))
    for number in range(4):
        run.model.scale.mul_(1 + number / 10 + e.rank)
        run.model.hidden.add_(e.rank)
        run.step()
    return run.values()


@behaviour
def freezes_in_the_midst(e: Env) -> Values:
    run = e.start(task(optimizer=momentum), ddp={"find_unused_parameters": True})
    run.steps(2)
    run.optimizer.zero_grad()
    run.model[0].requires_grad_(requires_grad=False)
    run.steps(3)
    return run.values()


@behaviour
def thaws_in_the_midst(e: Env) -> Values:
    """Under DDP a parameter that was frozen when it was wrapped is each rank's own when it thaws."""

    def model() -> nn.Module:
        made = net()
        made[0].requires_grad_(requires_grad=False)
        return made

    run = e.start(task(model, momentum))
    run.steps(2)
    run.model[0].requires_grad_()
    run.steps(2)
    return run.values()


@behaviour
def thaws_and_is_parallelized_again(e: Env) -> Values:
    """As fine-tuning in stages has it: DDP is wrapped anew when a layer thaws."""

    def frozen() -> nn.Module:
        made = net()
        made[0].requires_grad_(requires_grad=False)
        return made

    first = e.start(task(frozen, momentum))
    first.steps(2)
    values = first.values()
    first.stop()
    second = e.run(task(net, momentum))
    second.model.load_state_dict(values)
    second.start()
    second.steps(2)
    return second.values()
