"""A small training in which something is done that the second argument names."""

import copy
import io
import sys
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def with_other_names(model: nn.Sequential) -> nn.Module:
    return nn.Sequential(OrderedDict(first=model[0], tanh=model[1], last=model[2]))


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 5, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs[:, :2]).square().mean()


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def wrap(model: nn.Module, what: str) -> DDP:
    first, second = list(model.named_parameters())[:2]
    options = {
        "mixed_precision": lambda: {
            "mixed_precision": torch.nn.parallel.distributed._MixedPrecision(param_dtype=torch.bfloat16)
        },
        "delays": lambda: {"delay_all_reduce_named_params": [first], "param_to_hook_all_reduce": second[1]},
        "device_ids": lambda: {"device_ids": [0]},
    }
    return DDP(model, **options.get(what, dict)())


def train(model: nn.Module, steps: int = 2) -> None:
    optimizer = make_optimizer(model.parameters())
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch(data)).backward()
        optimizer.step()


def average(model: nn.Module) -> dict[str, object]:
    """Train, and evaluate the average of the weights after each training; return both."""
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(3):
        train(model)
        averaged.update_parameters(model)
        with torch.no_grad():
            loss_of(averaged, batch(torch.Generator()))
    return {"averaged": averaged.module.state_dict(), "model": model.state_dict()}


def distil(model: nn.Module) -> None:
    """Train by what a frozen teacher says, which is wrapped too."""
    teacher = DDP(build(), init_sync=False)
    teacher.requires_grad_(False)
    optimizer = make_optimizer(model.parameters())
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(4):
        inputs = batch(data)
        optimizer.zero_grad()
        (model(inputs) - teacher(inputs)).square().mean().backward()
        optimizer.step()


def train_otherwise(what: str, model: nn.Module) -> None:
    """Make two backward passes in a step, or the optimizer after the first; or train by a teacher."""
    if what == "distils":
        distil(model)
        return
    data = torch.Generator().manual_seed(dist.get_rank())
    optimizer = None
    for _ in range(4):
        if what != "late_optimizer":
            loss_of(model, batch(data)).backward()
        if what == "drops_gradients":
            model.zero_grad()
        loss_of(model, batch(data)).backward()
        optimizer = optimizer or make_optimizer(model.parameters())
        optimizer.step()
        optimizer.zero_grad()


def do(what: str, model: nn.Module, wrapped: DDP) -> None:
    if what == "hook":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif what == "averaging_hook":
        wrapped.register_comm_hook(dist.group.WORLD, default_hooks.allreduce_hook)
        train(wrapped)
        torch.save({"model": wrapped.state_dict()}, f"{sys.argv[1]}-{dist.get_rank()}.pt")
    elif what == "joins":
        with Join([wrapped]):
            train(wrapped)
    elif what == "looks_into_reducer":
        assert not hasattr(wrapped.reducer, "_get_backward_stats")
        wrapped.reducer._get_backward_stats()
    elif what == "two_wrappers":
        second = DDP(model)
        train(wrapped)
        train(second)
        train(wrapped)
    elif what == "no_optimizer":
        loss_of(wrapped, batch(torch.Generator())).backward()
    elif what == "closure":
        optimizer = make_optimizer(wrapped.parameters())

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(wrapped, batch(torch.Generator().manual_seed(dist.get_rank())))
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(3)]
        torch.save({"model": wrapped.state_dict(), "losses": losses}, f"{sys.argv[1]}-{dist.get_rank()}.pt")
    elif what == "random_numbers":
        first = torch.rand(1)
        train(wrapped)
        torch.save({"first": first, "then": torch.rand(3)}, f"{sys.argv[1]}-{dist.get_rank()}.pt")
    elif what == "copies":
        train(wrapped)
        written = io.BytesIO()
        torch.save(wrapped, written)
        written.seek(0)
        again = torch.load(written, weights_only=False)
        copied = copy.deepcopy(wrapped)
        train(again)
        train(copied)
        train(wrapped)
        values = {"again": again.state_dict(), "copied": copied.state_dict(), "model": wrapped.state_dict()}
        torch.save(values, f"{sys.argv[1]}-{dist.get_rank()}.pt")
    elif what in ("late_optimizer", "drops_gradients", "adds_gradients", "distils"):
        train_otherwise(what, wrapped)
        torch.save({"model": wrapped.state_dict()}, f"{sys.argv[1]}-{dist.get_rank()}.pt")
    elif what == "averages":
        torch.save(average(wrapped), f"{sys.argv[1]}-{dist.get_rank()}.pt")
    else:
        train(wrapped)
        torch.save({"model": wrapped.state_dict()}, f"{sys.argv[1]}-{dist.get_rank()}.pt")


def main() -> None:
    what = sys.argv[2]
    if what == "neither":
        return
    if what == "miscounts":
        dist.init_process_group("gloo", rank=0, world_size=1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = build() if what != "other_model" else nn.Linear(3, 3)
    if what == "rank_with_other_names" and dist.get_rank() == 1:
        model = with_other_names(model)
    if what == "ignores":
        DDP._set_params_and_buffers_to_ignore_for_model(model, ["0.weight"])
    if what == "unwrapped":
        train(model)
        return
    wrapped = wrap(model, what)
    do(what, model, wrapped)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
