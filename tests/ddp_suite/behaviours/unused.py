"""Parameters that get no gradient in a step: what `find_unused_parameters` is for."""

from collections.abc import Callable
from typing import Any

import torch
from environment import Env, Values, adamw, behaviour, enter, momentum, sgd, task
from torch import Tensor, nn

FIND = {"find_unused_parameters": True}


class Branches(nn.Module):
    """A trunk and branches; `choose(step, rank)` says which branches a pass goes through."""

    def __init__(self, choose: Callable[[int], list[int]], count: int = 3) -> None:
        super().__init__()
        self.trunk = nn.Linear(5, 6)
        self.branches = nn.ModuleList(nn.Linear(6, 6) for _ in range(count))
        self.head = nn.Linear(6, 1)
        self.choose = choose
        self.turn = -1

    def forward(self, x: Tensor) -> Tensor:
        self.turn += self.training
        x = torch.tanh(self.trunk(x))
        for number in self.choose(max(self.turn, 0)):
            x = x + torch.tanh(self.branches[number](x))
        return self.head(x)


def _branches(e: Env, choose: Callable[[int], list[int]], optimizer: Any = momentum, steps: int = 6) -> Values:
    """The task is profiled with passes through all branches, as a profile of an ordinary step has them or not."""
    run = e.run(task(lambda: Branches(choose).double(), optimizer))
    run.start(ddp=FIND)
    losses = run.steps(steps)
    return {"losses": losses, **run.values()}


PATTERNS: dict[str, Callable[[int, int], list[int]]] = {
    "branch_never_taken": lambda step, rank: [0, 1],
    "branch_taken_in_turn": lambda step, rank: [step % 3],
    "branch_not_taken_at_first": lambda step, rank: [0, 1] if step < 3 else [0, 1, 2],
    "branch_not_taken_later": lambda step, rank: [0, 1, 2] if step < 3 else [0],
    "branch_another_on_each_rank": lambda step, rank: [(step + rank) % 3],
    "branch_on_one_rank_alone": lambda step, rank: [0, 1] if rank else [0, 1, 2],
    "branch_on_one_rank_at_last": lambda step, rank: [0, 1, 2] if rank or step > 3 else [0],
    "branch_none_in_some_steps": lambda step, rank: [] if step % 2 else [0, 1, 2],
    "branch_none_on_one_rank": lambda step, rank: [] if rank == 0 and step % 2 else [0, 1, 2],
    "branch_order_differs": lambda step, rank: [2, 1, 0] if (rank + step) % 2 else [0, 1, 2],
}


def _pattern(choose: Callable[[int, int], list[int]], optimizer: Any) -> Callable[[Env], Values]:
    return lambda e: _branches(e, lambda step: choose(step, e.rank), optimizer)


for _name, _choose in PATTERNS.items():
    enter(_name, _pattern(_choose, momentum), group="unused")
enter("branch_in_turn_by_adamw", _pattern(PATTERNS["branch_taken_in_turn"], adamw), group="unused")
enter("branch_in_turn_by_sgd", _pattern(PATTERNS["branch_taken_in_turn"], sgd), group="unused")
enter("branch_another_on_each_rank_by_adamw", _pattern(PATTERNS["branch_another_on_each_rank"], adamw), group="unused")


@behaviour
def layerdrop(e: Env) -> Values:
    """Each layer is left out at random, other ones on each rank."""
    draws = torch.Generator().manual_seed(70 + e.rank)

    class Dropped(Branches):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.trunk(x))
            for branch in self.branches:
                if not self.training or torch.rand((), generator=draws) < 0.6:
                    x = x + torch.tanh(branch(x))
            return self.head(x)

    def model() -> nn.Module:
        draws.manual_seed(70 + e.rank)
        return Dropped(lambda _: []).double()

    run = e.run(task(model, momentum)).start(ddp=FIND)
    draws.manual_seed(80 + e.rank)
    return {"losses": run.steps(8), **run.values()}


@behaviour
def experts(e: Env) -> Values:
    """A mixture of experts: each row goes to one of four, and some experts get none."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(5, 1) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            to = (x[:, 0] * 7).long().abs() % 4
            out = torch.zeros(len(x), 1, dtype=x.dtype)
            for number, expert in enumerate(self.experts):
                rows = (to == number).nonzero().flatten()
                if len(rows):
                    out = out.index_add(0, rows, expert(x[rows]))
            return out

    run = e.run(task(lambda: Experts().double(), momentum)).start(ddp=FIND)
    return {"losses": run.steps(8), **run.values()}


@behaviour
def experts_with_empty_inputs(e: Env) -> Values:
    """The same, but every expert is called, some with no rows: their gradients are zeros."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(5, 1) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            to = (x[:, 0] * 7).long().abs() % 4
            return torch.cat([expert(x[to == number]) for number, expert in enumerate(self.experts)])

    run = e.run(task(lambda: Experts().double(), momentum)).start()
    return {"losses": run.steps(8), **run.values()}


@behaviour
def never_used_parameter(e: Env) -> Values:
    """A parameter that no pass ever uses and the optimizer holds, with weight decay: nobody moves it."""

    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.idle = nn.Linear(5, 1), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x)

    run = e.start(task(lambda: Idle().double(), lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1)), ddp=FIND)
    return {"losses": run.steps(), **run.values()}


@behaviour
def an_output_outside_the_loss(e: Env) -> Values:
    """The second head is computed in every step, and the loss leaves it out in some."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.one, self.two = nn.Linear(5, 6), nn.Linear(6, 1), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Any:
            h = torch.tanh(self.trunk(x))
            return self.one(h), self.two(h)

    def loss(m: Any, x: Tensor) -> Tensor:
        one, two = m(x)
        return (one - 1).square().mean() + (two - 1).square().mean()

    run = e.start(task(lambda: Heads().double(), momentum, loss=loss), ddp=FIND)
    run.steps(2)
    for _ in range(3):
        run.optimizer.zero_grad()
        one, _ = run.called(run.batch())
        one.square().mean().backward()
        run.optimizer.step()
    run.step()
    return run.values()


@behaviour
def unused_with_accumulation(e: Env) -> Values:
    """A branch that is used in one microstep of two, within or without `no_sync`."""
    taken = [0]
    run = e.run(task(lambda: Branches(lambda _: taken).double(), momentum)).start(ddp=FIND)
    for number in range(4):
        run.optimizer.zero_grad()
        with run.no_sync():
            taken[:] = [number % 2]
            run.loss().backward()
        taken[:] = [(number + e.rank) % 2]
        run.loss().backward()
        run.optimizer.step()
    return run.values()


@behaviour
def unused_gradients_are_none_or_zero(e: Env) -> Values:
    """What `grad` is of a branch that no rank used."""
    run = e.run(task(lambda: Branches(lambda step: [0, 1] if step > 1 else [0, 1, 2]).double())).start(ddp=FIND)
    found = {}
    for number in range(4):
        run.optimizer.zero_grad()
        run.loss().backward()
        found |= run.grads(f"{number} ")
        run.optimizer.step()
    return found


@behaviour
def unused_without_being_told(e: Env) -> Values:
    """Without `find_unused_parameters` DDP refuses the second forward pass."""
    run = e.run(task(lambda: Branches(lambda step: [0, 1] if step > 1 else [0, 1, 2]).double())).start()
    run.steps(5)
    return run.values()


@behaviour
def an_unused_layer_then_frozen(e: Env) -> Values:
    run = e.run(task(lambda: Branches(lambda step: [0, 1, 2] if step < 3 else [0, 1]).double(), momentum))
    run.start(ddp=FIND)
    run.steps(2)
    for parameter in run.model.branches[2].parameters():
        parameter.grad = None
    run.steps(3)
    return run.values()


@behaviour
def find_unused_where_all_are_used(e: Env) -> Values:
    run = e.start(task(), ddp=FIND)
    return {"losses": run.steps(), **run.values()}


@behaviour
def requires_grad_in_turn(e: Env) -> Values:
    """The halves of one model are trained in turn, the other half frozen meanwhile; one optimizer holds both."""
    run = e.start(task(optimizer=momentum), ddp=FIND)
    halves = [list(run.model[0].parameters()), [*run.model[2].parameters(), *run.model[4].parameters()]]
    for number in range(6):
        run.optimizer.zero_grad()
        for half, parameters in enumerate(halves):
            for p in parameters:
                p.requires_grad_(requires_grad=number < 1 or half == number % 2)
        run.loss().backward()
        run.optimizer.step()
    return run.values()


@behaviour
def unused_in_a_dataclass(e: Env) -> Values:
    """Outputs in a dataclass, of which the loss takes one."""
    from behaviours.basics import Out

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 1), nn.Linear(5, 1)

        def forward(self, x: Tensor) -> Out:
            return Out(self.a(x), self.b(x))

    run = e.start(task(lambda: Two().double(), momentum, loss=lambda m, x: (m(x).logits - 1).square().mean()), ddp=FIND)
    return {"losses": run.steps(), **run.values()}


@behaviour
def checkpoint_of_a_branch(e: Env) -> Values:
    """A branch under checkpointing, that is not taken in every step."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Branches):
        def forward(self, x: Tensor) -> Tensor:
            self.turn += self.training
            x = torch.tanh(self.trunk(x))
            for number in self.choose(max(self.turn, 0)):
                x = x + torch.tanh(checkpoint(self.branches[number], x, use_reentrant=False))
            return self.head(x)

    run = e.run(task(lambda: Checkpointed(lambda step: [step % 3, (step + 1) % 3]).double(), momentum)).start(ddp=FIND)
    return {"losses": run.steps(6), **run.values()}


@behaviour
def reentrant_checkpoint_of_a_branch(e: Env) -> Values:
    """The same by a pass within the backward pass; the forward pass calls the branch without gradients."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Branches):
        def forward(self, x: Tensor) -> Tensor:
            self.turn += self.training
            x = torch.tanh(self.trunk(x))
            for number in self.choose(max(self.turn, 0)):
                x = x + torch.tanh(checkpoint(self.branches[number], x, use_reentrant=True))
            return self.head(x)

    run = e.run(task(lambda: Checkpointed(lambda step: [(step + e.rank) % 3]).double(), momentum)).start(ddp=FIND)
    return {"losses": run.steps(6), **run.values()}


@behaviour
def branch_read_without_a_call(e: Env) -> Values:
    """A branch's weights are read by the model, and no forward pass of the branch itself takes place."""

    class Reads(Branches):
        def forward(self, x: Tensor) -> Tensor:
            self.turn += self.training
            x = torch.tanh(self.trunk(x))
            for number in self.choose(max(self.turn, 0)):
                x = x + torch.tanh(x @ self.branches[number].weight.T)
            return self.head(x)

    run = e.run(task(lambda: Reads(lambda step: [2, 0] if (step + e.rank) % 3 else [1]).double(), adamw)).start(
        ddp=FIND
    )
    return {"losses": run.steps(6), **run.values()}


@behaviour
def called_before_another_model_trains(e: Env) -> Values:
    """A pass without a backward pass comes between two steps, and calls what the steps leave out."""
    run = e.run(task(lambda: Branches(lambda step: [step % 3]).double(), momentum)).start(ddp=FIND)
    losses = []
    for _ in range(4):
        losses.append(run.step())
        run.loss()
    return {"losses": losses, **run.values()}


@behaviour
def depth_that_differs_by_step(e: Env) -> Values:
    """Control flow by the data: as many layers as a number in the batch says, alike on all ranks or not."""

    class Deep(Branches):
        def forward(self, x: Tensor) -> Tensor:
            depth = int(x[0, 0].abs() * 10) % 4
            x = torch.tanh(self.trunk(x))
            for branch in list(self.branches)[:depth]:
                x = torch.tanh(branch(x))
            return self.head(x)

    run = e.run(task(lambda: Deep(lambda _: []).double(), adamw)).start(ddp=FIND)
    return {"losses": run.steps(8), **run.values()}


class _MinusZero(torch.autograd.Function):
    """Adds nothing to x; the gradient of `w` is -0.0 in each element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.shape = w.shape
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.full(ctx.shape, -0.0, dtype=gradients[0].dtype)


@behaviour
def used_with_gradients_of_minus_zero_on_some_ranks(e: Env) -> Values:
    """A layer whose gradient is -0.0 throughout was used: decay moves it. The first rank leaves it out at times."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.aside = nn.Linear(5, 6), nn.Linear(12, 12)
            self.turn = 0

        def forward(self, x: Tensor) -> Tensor:
            self.turn += 1
            x = torch.tanh(self.trunk(x)).sum(1)
            if e.rank == 0 and self.turn > 2:
                return x
            return _MinusZero.apply(_MinusZero.apply(x, self.aside.weight), self.aside.bias)

    run = e.run(task(lambda: Gated().double(), adamw))
    run.start(ddp=FIND)
    return {"losses": run.steps(5), **run.values()}
