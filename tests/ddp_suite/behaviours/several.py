"""Several models and optimizers at once: adversarial training, teachers, losses of two models, training again."""

from typing import Any

import torch
from environment import Env, Run, Values, adam, behaviour, enter, momentum, net, numbers, task
from torch import Tensor, nn
from torch.nn import functional


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5))

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def noise(g: torch.Generator) -> Tensor:
    return torch.randn(4, 3, generator=g, dtype=torch.float64)


def _pair(e: Env, optimizer: Any = adam) -> tuple[Run, Run]:
    made = e.start(
        task(lambda: Generator().double(), optimizer, noise, loss=lambda m, z: m(z).square().mean()),
        ddp={"broadcast_buffers": False},
    )
    judged = e.start(
        task(lambda: Critic().double(), optimizer, numbers, loss=lambda m, x: functional.softplus(m(x)).mean()),
        ddp={"broadcast_buffers": False},
    )
    return made, judged


def _values(made: Run, judged: Run) -> Values:
    return {**made.values("g "), **judged.values("d ")}


@behaviour
def gan(e: Env) -> Values:
    """The usual loop: the generator's loss goes through the critic, whose gradients of it are thrown away."""
    g, d = _pair(e)
    for _ in range(4):
        d.optimizer.zero_grad()
        fake = g.called(g.batch())
        real = functional.softplus(-d.called(d.batch())).mean()
        (real + functional.softplus(d.called(fake.detach())).mean()).backward()
        d.optimizer.step()
        g.optimizer.zero_grad()
        functional.softplus(-d.called(fake)).mean().backward()
        g.optimizer.step()
    return _values(g, d)


@behaviour
def gan_that_zeroes_after_each_turn(e: Env) -> Values:
    g, d = _pair(e)
    for _ in range(4):
        d.optimizer.zero_grad()
        fake = g.called(g.batch())
        real = functional.softplus(-d.called(d.batch())).mean()
        (real + functional.softplus(d.called(fake.detach())).mean()).backward()
        d.optimizer.step()
        d.optimizer.zero_grad()
        g.optimizer.zero_grad()
        functional.softplus(-d.called(fake)).mean().backward()
        g.optimizer.step()
        d.optimizer.zero_grad()
    return _values(g, d)


@behaviour
def gan_in_two_passes(e: Env) -> Values:
    """The critic's loss in two backward passes, as DCGAN has it, the first under `no_sync`."""
    g, d = _pair(e)
    for _ in range(3):
        d.optimizer.zero_grad()
        fake = g.called(g.batch())
        with d.no_sync():
            functional.softplus(-d.called(d.batch())).mean().backward()
        functional.softplus(d.called(fake.detach())).mean().backward()
        d.optimizer.step()
        g.optimizer.zero_grad()
        functional.softplus(-d.called(fake)).mean().backward()
        g.optimizer.step()
    return _values(g, d)


@behaviour
def gan_with_a_frozen_critic(e: Env) -> Values:
    """The critic does not require gradients while the generator trains."""
    g, d = _pair(e)
    for _ in range(4):
        d.optimizer.zero_grad()
        fake = g.called(g.batch())
        real = functional.softplus(-d.called(d.batch())).mean()
        (real + functional.softplus(d.called(fake.detach())).mean()).backward()
        d.optimizer.step()
        d.model.requires_grad_(requires_grad=False)
        g.optimizer.zero_grad()
        functional.softplus(-d.model(fake)).mean().backward()
        g.optimizer.step()
        d.model.requires_grad_()
    return _values(g, d)


@behaviour
def wgan_with_gradient_penalty(e: Env) -> Values:
    """The critic trains in three steps of four, with a penalty on its gradient by the input."""
    g, d = _pair(e)
    for number in range(6):
        fake = g.called(g.batch())
        if number % 3 != 2:
            d.optimizer.zero_grad()
            real = d.batch()
            between = (real + fake.detach()).requires_grad_()
            (grad,) = torch.autograd.grad(d.called(between).sum(), between, create_graph=True)
            (d.called(fake.detach()).mean() - d.called(real).mean() + grad.square().mean()).backward()
            d.optimizer.step()
        else:
            g.optimizer.zero_grad()
            d.model.requires_grad_(requires_grad=False)
            (-d.model(fake).mean()).backward()
            d.model.requires_grad_()
            g.optimizer.step()
    return _values(g, d)


@behaviour
def gan_in_one_model(e: Env) -> Values:
    """Generator and critic are children of one model, each with an optimizer of its own."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.g, self.d = Generator(), Critic()

        def forward(self, z: Tensor) -> Tensor:
            return self.d(self.g(z))

    run = e.run(task(lambda: Both().double(), adam, noise))
    run.optimizer = adam(run.model.g.parameters())
    other = adam(run.model.d.parameters())
    run.start()
    for _ in range(4):
        for optimizer, sign in ((other, 1), (run.optimizer, -1)):
            run.optimizer.zero_grad()
            other.zero_grad()
            functional.softplus(sign * run.called(run.batch())).mean().backward()
            optimizer.step()
    return run.values()


@behaviour
def two_models_in_turn(e: Env) -> Values:
    a, b = e.start(task(optimizer=momentum)), e.start(task(optimizer=adam), seed=9)
    for _ in range(4):
        a.step()
        b.step()
    return {**a.values("a "), **b.values("b ")}


@behaviour
def two_models_in_one_loss(e: Env) -> Values:
    a, b = e.start(task(optimizer=momentum)), e.start(task(optimizer=momentum), seed=9)
    for _ in range(4):
        a.optimizer.zero_grad()
        b.optimizer.zero_grad()
        (a.loss() + 2 * b.loss()).backward()
        a.optimizer.step()
        b.optimizer.step()
    return {**a.values("a "), **b.values("b ")}


@behaviour
def two_models_behind_one_another(e: Env) -> Values:
    """An encoder and a decoder, parallel each by itself."""
    a = e.start(task(lambda: nn.Linear(5, 5).double(), momentum))
    b = e.start(task(net, momentum), seed=9)
    for _ in range(4):
        a.optimizer.zero_grad()
        b.optimizer.zero_grad()
        (b.called(torch.tanh(a.called(a.batch()))) - 1).square().mean().backward()
        a.optimizer.step()
        b.optimizer.step()
    return {**a.values("a "), **b.values("b ")}


@behaviour
def two_models_of_one_optimizer(e: Env) -> Values:
    """One optimizer holds both models' parameters; only one model is parallel, the other is each rank's own."""
    a = e.run(task(optimizer=momentum))
    torch.manual_seed(21)
    other = nn.Linear(1, 1).double()
    a.optimizer.add_param_group({"params": list(other.parameters())})
    a.start()
    for _ in range(4):
        a.optimizer.zero_grad()
        (other(a.called(a.batch())) - 1).square().mean().backward()
        a.optimizer.step()
    return {**a.values("a "), **{f"other {k}": v.clone() for k, v in other.state_dict().items()}}


@behaviour
def two_parallel_models_of_one_optimizer(e: Env) -> Values:
    a, b = e.run(task(optimizer=momentum)), e.run(task(optimizer=momentum), seed=9)
    a.optimizer.add_param_group({"params": b.parameters()})
    b.optimizer = a.optimizer
    a.start()
    b.start()
    for _ in range(4):
        a.optimizer.zero_grad()
        (a.loss() + b.loss()).backward()
        a.optimizer.step()
    return {**a.values("a "), **b.values("b ")}


@behaviour
def teacher_and_student(e: Env) -> Values:
    """The teacher is the student's moving average."""
    run = e.start(task(optimizer=momentum))
    teacher = net()
    teacher.load_state_dict(run.model.state_dict())
    teacher.requires_grad_(requires_grad=False)
    for _ in range(4):
        run.optimizer.zero_grad()
        x = run.batch()
        ((run.called(x) - 1).square().mean() + (run.called(x) - teacher(x)).square().mean()).backward()
        run.optimizer.step()
        with torch.no_grad():
            for mean, p in zip(teacher.parameters(), run.model.parameters(), strict=True):
                mean.lerp_(p, 0.5)
    return {**run.values(), **{f"teacher {k}": v.clone() for k, v in teacher.state_dict().items()}}


@behaviour
def target_network(e: Env) -> Values:
    """As in Q-learning: the target is a copy of the model every few steps."""
    run = e.start(task(optimizer=momentum))
    target = net()
    for number in range(6):
        if number % 3 == 0:
            target.load_state_dict(run.model.state_dict())
        run.optimizer.zero_grad()
        x = run.batch()
        with torch.no_grad():
            goal = 1 + 0.9 * target(x)
        (run.called(x) - goal).square().mean().backward()
        run.optimizer.step()
    return run.values()


@behaviour
def trained_again(e: Env) -> Values:
    """Parallel, ended, and parallel again."""
    run = e.start(task())
    run.steps(2)
    run.stop()
    run.start()
    run.steps(2)
    return run.values()


@behaviour
def trained_alone_between(e: Env) -> Values:
    """After it has ended each rank trains for itself; then all start from the first rank's again."""
    run = e.start(task())
    run.steps(2)
    run.stop()
    run.steps(2)
    alone = run.values("alone ")
    run.start()
    run.steps(2)
    return {**alone, **run.values()}


@behaviour
def many_models_one_after_another(e: Env) -> Values:
    found = {}
    for number in range(5):
        run = e.start(task(optimizer=momentum), seed=number)
        run.steps(2)
        found |= run.values(f"{number} ")
        run.stop()
    return found


@behaviour
def meta_learning(e: Env) -> Values:
    """An inner step by `functional_call` whose gradient goes into the outer one."""
    run = e.start(task(optimizer=momentum))
    for _ in range(3):
        run.optimizer.zero_grad()
        x, held = run.batch(), run.batch()
        loss = (run.called(x) - 1).square().mean()
        names, parameters = zip(*run.model.named_parameters(), strict=True)
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        prefix = "module." if e.is_stock else ""
        values = {f"{prefix}{n}": p - 0.1 * g for n, p, g in zip(names, parameters, grads, strict=True)}
        out = torch.func.functional_call(run.called, values, (held,))
        (out - 1).square().mean().backward()
        run.optimizer.step()
    return run.values()


def _child(e: Env, pick: Any) -> Values:
    """Only a child of the script's model is parallel; the rest is each rank's own."""
    run = e.start(task(lambda: nn.Linear(5, 6).double(), momentum))
    torch.manual_seed(12)
    head = nn.Linear(6, 1).double()
    other = pick(head.parameters())
    for _ in range(4):
        run.optimizer.zero_grad()
        other.zero_grad()
        (head(run.called(run.batch())) - 1).square().mean().backward()
        run.optimizer.step()
        other.step()
    return {**run.values(), **{f"head {k}": v.clone() for k, v in head.state_dict().items()}}


enter("a_child_is_parallel", lambda e: _child(e, momentum), group="several")
enter("a_child_is_parallel_and_the_rest_by_adam", lambda e: _child(e, adam), group="several")
