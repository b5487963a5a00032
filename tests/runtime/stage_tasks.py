"""Small tasks in float64 that can be cut into stages: each has something that crosses cuts in its own way."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

WIDTH = 8
NUM_WORDS = 13
BATCH = 4

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def _momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


class Convolutions(nn.Module):
    """Activations are changed in place, also behind the cut that they have crossed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3)
        self.second = nn.Conv2d(5, 4, 2, bias=False)
        self.third = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(36, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = functional.relu(self.first(images), inplace=True)
        x = functional.max_pool2d(x, 2, stride=1)
        x = self.second(x) * 1.5
        y = functional.relu_(self.third(x + 0.5))
        x = x.mul_(0.5).add_(y)[:, :, :3, :3]
        # Only a part of what has been computed is used.
        logits: Tensor = self.head(functional.pad(x, (0, 3 - x.shape[3], 0, 3 - x.shape[2])).flatten(1))
        return logits


def convolutions() -> Task:
    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images = torch.randn(BATCH, 3, 6, 6, generator=generator, dtype=torch.float64)
        return images, torch.randint(3, (BATCH,), generator=generator)

    return Task(
        name="convolutions",
        model=lambda: Convolutions().double(),
        batch=batch,
        loss=lambda model, pair: functional.cross_entropy(model(pair[0]), pair[1]),
        optimizer=_momentum,
        batch_size=BATCH,
    )


class TiedText(nn.Module):
    """The output is tied to the embedding, a mask and positions have no gradient, and a parameter has no module."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, WIDTH)
        self.places = nn.Embedding(6, WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11), nn.GELU(), nn.Linear(11, WIDTH))
        self.output = nn.Linear(WIDTH, NUM_WORDS, bias=False)
        self.output.weight = self.words.weight
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        x = self.words(text) + self.places(torch.arange(length))
        mask = torch.ones(length, length).tril() == 0
        query, key, value = self.query_key_value(x).chunk(3, dim=2)
        scores = (query @ key.transpose(1, 2) / WIDTH**0.5).masked_fill(mask, float("-inf"))
        x = x + self.scale * self.projection(scores.softmax(2) @ value)
        logits: Tensor = self.output(x + self.feed_forward(x))
        return logits


def tied_text() -> Task:
    return Task(
        name="tied-text",
        model=lambda: TiedText().double(),
        batch=lambda generator: torch.randint(NUM_WORDS, (BATCH, 6), generator=generator),
        loss=lambda model, text: functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()),
        optimizer=_adam,
        batch_size=BATCH,
    )


class FarSkip(nn.Module):
    """What the first layer computes is used again by the last one, past all others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.last = nn.Linear(2 * WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = y = torch.tanh(self.layers[0](x))
        for layer in list(self.layers)[1:]:
            y = y + torch.tanh(layer(y))
        result: Tensor = self.last(torch.cat([y, first.square()], dim=1))
        return result


def far_skip() -> Task:
    return Task(
        name="far-skip",
        model=lambda: FarSkip().double(),
        batch=lambda generator: torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64),
        loss=lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean(),
        optimizer=_adam,
        batch_size=BATCH,
    )


class AddedParameters(nn.Module):
    """Parameters are added, so torch lets their gradients share memory, also with one that backward still passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.tall, self.wide = nn.Parameter(torch.randn(WIDTH, 1)), nn.Parameter(torch.randn(2, WIDTH // 2))
        self.shift = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        added = self.shift + torch.tanh(self.tall.view(1, WIDTH) + self.wide.view(1, WIDTH))
        result: Tensor = self.last(torch.tanh(self.first(x)) * added)
        return result


def added_parameters() -> Task:
    return replace(far_skip(), name="added-parameters", model=lambda: AddedParameters().double(), optimizer=_momentum)


class Tables(nn.Module):
    """A network of layers behind several embeddings; one frozen layer and one that is never used."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(7, WIDTH, sparse=sparse), nn.Embedding(9, WIDTH, sparse=sparse)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.idle = nn.Linear(2, 2)
        self.hidden = nn.Linear(2 * WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        users, items = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        x = torch.cat([users, torch.relu(self.frozen(items))], dim=1)
        result: Tensor = self.last(torch.relu(self.hidden(x)))
        return result


def tables() -> Task:
    def batch(generator: torch.Generator) -> dict[str, Tensor]:
        pairs = torch.stack([torch.randint(n, (BATCH,), generator=generator) for n in (7, 9)], dim=1)
        return {"pairs": pairs, "ratings": torch.randn(BATCH, 1, generator=generator, dtype=torch.float64)}

    return Task(
        name="tables",
        model=lambda: Tables(sparse=False).double(),
        batch=batch,
        loss=lambda model, batch: (model(batch["pairs"]) - batch["ratings"]).square().mean(),
        optimizer=_momentum,
        batch_size=BATCH,
    )


def sparse_tables() -> Task:
    """The embeddings have sparse gradients."""
    return replace(
        tables(),
        name="sparse-tables",
        model=lambda: Tables(sparse=True).double(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    )


def clipped_text() -> Task:
    """Gradients are clipped by the norm of all stages' gradients."""
    return replace(tied_text(), name="clipped-text", clip_norm=0.1)


def clipped_tables() -> Task:
    """Gradients are clipped, and a stage may have the frozen layer alone, without gradients."""
    return replace(tables(), name="clipped-tables", clip_norm=0.1)


def partly_updated() -> Task:
    """The optimizer does not have the first layer, which stays as it is."""
    return replace(far_skip(), name="partly-updated", optimizer=lambda parameters: _adam(list(parameters)[2:]))


def hooked() -> Task:
    """A hook changes the gradient of a parameter."""

    def model() -> nn.Module:
        made = FarSkip().double()
        made.last.weight.register_hook(lambda gradient: gradient.sign())
        return made

    return replace(far_skip(), name="hooked", model=model)


def hooked_step() -> Task:
    """A hook before the optimizer's step normalises all gradients together."""

    def clip(optimizer: torch.optim.Optimizer, *_: object) -> None:
        nn.utils.clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], 0.1)

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        made = _momentum(parameters)
        made.register_step_pre_hook(clip)
        return made

    return replace(far_skip(), name="hooked-step", optimizer=optimizer)


class Followed(nn.Module):
    """A network and a frozen one, its target, which a script moves towards it."""

    def __init__(self) -> None:
        super().__init__()
        self.online = FarSkip()
        self.target = FarSkip().requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.online(x) - self.target(x)
        return result


def followed() -> Task:
    """A target network is in the model."""
    return replace(far_skip(), name="followed", model=lambda: Followed().double())


def taught() -> Task:
    """A teacher outside the model computes what is to be learned."""
    state = torch.random.get_rng_state()
    torch.manual_seed(7)
    teacher = nn.Sequential(nn.Linear(WIDTH, 5), nn.Dropout(0.5), nn.Linear(5, 1)).double().eval()
    torch.random.set_rng_state(state)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(x)
        return (model(x) - wanted).square().mean()

    return replace(far_skip(), name="taught", loss=loss)


class Lazy(nn.Module):
    """The first pass makes a mask and a table, which all further ones use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.mask: Tensor | None = None
        self.tables: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[1]
        if self.mask is None:
            self.mask = torch.arange(width) % 3 > 0
            self.tables[width] = torch.arange(width).to(x).cos()
        y = torch.tanh(self.first(x)) * self.mask + self.tables[width]
        result: Tensor = self.last(torch.tanh(self.second(y)) * self.mask * self.tables[width])
        return result


def lazy() -> Task:
    return replace(far_skip(), name="lazy", model=lambda: Lazy().double())


def normalised() -> Task:
    """BatchNorm computes over its own microbatch."""
    return Task(
        name="normalised",
        # A microbatch of one example has two numbers of each channel.
        model=lambda: nn.Sequential(
            nn.Linear(WIDTH, 8), nn.Unflatten(1, (4, 2)), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 1)
        ).double(),
        batch=lambda generator: torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=_momentum,
        batch_size=BATCH,
    )


def masked() -> Task:
    """The loss is a mean over unmasked numbers, of which all examples that `batch` draws have equally many."""

    def batch(generator: torch.Generator) -> dict[str, Tensor]:
        return {
            "x": torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64),
            "unmasked": torch.ones(BATCH, WIDTH, dtype=torch.float64),
        }

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        errors = (model(batch["x"]) - batch["x"]).square() * batch["unmasked"]
        return errors.sum() / batch["unmasked"].sum()

    return Task(
        name="masked",
        model=lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).double(),
        batch=batch,
        loss=loss,
        optimizer=_momentum,
        batch_size=BATCH,
    )


TASKS: dict[str, Callable[[], Task]] = {
    "convolutions": convolutions,
    "tied_text": tied_text,
    "far_skip": far_skip,
    "added_parameters": added_parameters,
    "tables": tables,
    "sparse_tables": sparse_tables,
    "clipped_text": clipped_text,
    "clipped_tables": clipped_tables,
    "partly_updated": partly_updated,
    "hooked": hooked,
    "hooked_step": hooked_step,
    "followed": followed,
    "taught": taught,
    "lazy": lazy,
    "normalised": normalised,
    "masked": masked,
}
