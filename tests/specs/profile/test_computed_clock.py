"""Computed times: each figure by its own formula. Ids: known on a device without values."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task
from autosync.errors import InputError
from autosync.specs.model import ModelSpec
from autosync.specs.profile.computed_clock import META, ComputedClock
from autosync.specs.profile.device_rates import DeviceRate
from autosync.specs.profile.operations import OperationClass
from autosync.specs.profile.run import profile

# One operation a second and a memory that costs nothing, and the other way round.
ARITHMETIC = DeviceRate(name="arithmetic", peak_operations=1, peak_bytes=1e30, operations_share=1, bytes_share=1)
MEMORY = DeviceRate(name="memory", peak_operations=1e30, peak_bytes=1, operations_share=1, bytes_share=1)


def computed(model: Callable[[], nn.Module], inputs: Tensor) -> ModelSpec:
    task = Task(
        model=model,
        batch=lambda generator: inputs,
        loss=lambda model, batch: model(batch).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    return profile(task, times="computed", steps=1)


def times(rate: DeviceRate, module: nn.Module, *shape: int) -> tuple[float, float]:
    """Forward and backward of a module on an input that needs a gradient."""
    clock = ComputedClock(rate)
    inputs = torch.empty(shape, device=META, requires_grad=True)
    with clock:
        start = clock.mark()
        output = module.to(META)(inputs)
        middle = clock.mark()
    gradient = torch.empty_like(output)
    with clock:
        output.backward(gradient)
    forward, backward = clock.seconds([start, middle, clock.mark()])
    return forward, backward


def test_a_matrix_product_costs_two_operations_an_element() -> None:
    forward, backward = times(ARITHMETIC, nn.Linear(5, 3, bias=False), 7, 5)
    assert (forward, backward) == (2 * 7 * 5 * 3, 2 * 2 * 7 * 5 * 3)


def test_a_convolution_costs_two_operations_a_tap() -> None:
    forward, backward = times(ARITHMETIC, nn.Conv2d(2, 3, 3, padding=1, bias=False), 4, 2, 6, 6)
    taps = 4 * 6 * 6 * 3 * 2 * 3 * 3
    assert (forward, backward) == (2 * taps, 2 * 2 * taps)


@pytest.mark.parametrize("transposed", [False, True])
def test_groups_divide_the_operations_of_a_convolution(transposed: bool) -> None:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    forward, backward = times(ARITHMETIC, kind(4, 8, 3, padding=1, groups=4, bias=False), 2, 4, 6, 6)
    whole, _ = times(ARITHMETIC, kind(4, 8, 3, padding=1, bias=False), 2, 4, 6, 6)
    assert (forward, backward) == (whole / 4, 2 * whole / 4)


class Classes:
    """A device that notes the classes of operations that take arithmetic, or batch norms."""

    name = "classes"

    def __init__(self) -> None:
        self.seen: list[OperationClass] = []

    def seconds(self, kind: OperationClass, operations: float, num_bytes: float) -> float:
        assert (operations > 0) == (kind not in ("memory", "batch_norm"))
        self.seen += [] if kind == "memory" else [kind]
        return 0.0

    def describe(self) -> str:
        return self.name


@pytest.mark.parametrize(
    ("module", "shape", "classes"),
    [
        (nn.Linear(4, 2), (3, 4), ["product"]),
        (nn.Conv2d(4, 2, 3, padding=1), (3, 4, 6, 6), ["convolution_3x3"]),
        (nn.Conv2d(4, 2, 3, stride=2), (3, 4, 6, 6), ["convolution"]),
        (nn.Conv2d(4, 2, 1), (3, 4, 6, 6), ["convolution"]),
        (nn.ConvTranspose2d(4, 2, 3), (3, 4, 6, 6), ["convolution"]),
        (nn.Conv1d(4, 4, 3, groups=4), (3, 4, 6), ["grouped_convolution"]),
        (nn.BatchNorm1d(4), (3, 4), ["batch_norm"]),
        (nn.LayerNorm(4), (3, 4), []),
        (nn.MultiheadAttention(4, 2, bias=False), (3, 4), ["product", "product", "batched_product"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_classes_of_operations(module: nn.Module, shape: tuple[int, ...], classes: list[OperationClass]) -> None:
    device = Classes()
    inputs = torch.empty(shape, device=META)
    with ComputedClock(device):
        module.to(META)(*([inputs] * (3 if isinstance(module, nn.MultiheadAttention) else 1)))
    assert set(device.seen) == set(classes)


def test_elementwise_work_costs_its_bytes() -> None:
    forward, _ = times(MEMORY, nn.ReLU(), 10, 10)
    assert forward == 2 * 100 * 4


def test_a_look_up_costs_its_rows_and_not_the_table() -> None:
    clock = ComputedClock(MEMORY)
    table = nn.Embedding(1000, 4, device=META)
    ids = torch.zeros(3, dtype=torch.int64, device=META)
    with clock:
        table(ids)
    assert clock.mark() == 3 * 8 + 3 * 4 * 4


def test_views_cost_nothing() -> None:
    clock = ComputedClock(MEMORY)
    inputs = torch.empty(4, 4, device=META)
    with clock:
        inputs.t().reshape(2, 8).unsqueeze(0).detach()
    # Only the reshape of a transposed tensor copies.
    assert clock.mark() == 2 * 16 * 4


def test_the_slower_of_arithmetic_and_memory_counts() -> None:
    rate = DeviceRate(name="both", peak_operations=10, peak_bytes=4, operations_share=0.5, bytes_share=0.25)
    assert (rate.seconds("product", 100, 1), rate.seconds("memory", 1, 100)) == (20, 100)


@pytest.mark.parametrize(
    "compute",
    [
        lambda ids: ids + 1,
        lambda ids: ids[:, 1:].reshape(-1) // 2,
        lambda ids: torch.arange(ids.shape[1], device=ids.device),
        lambda ids: ids.masked_fill(ids > 4, 0),
        lambda ids: torch.stack((ids, torch.zeros_like(ids))).clamp_(max=5),
        lambda ids: functional.pad(ids, (1, 0), value=9),
        lambda ids: ids.sort(descending=True)[0],
    ],
)
def test_integers_keep_their_values(compute: Callable[[Tensor], Tensor]) -> None:
    ids = torch.tensor([[3, 7, 1], [2, 9, 4]])
    clock = ComputedClock(MEMORY)
    moved = clock.to_meta(ids)
    with clock:
        result = compute(moved)
    assert result.is_meta
    values = clock.values(result)
    assert values is not None
    assert torch.equal(values, compute(ids))


def test_integers_written_in_place_keep_their_values() -> None:
    clock = ComputedClock(MEMORY)
    ids = clock.to_meta(torch.tensor([1, 2, 3]))
    with clock:
        ids[1:].mul_(10)
    values = clock.values(ids)
    assert values is not None
    assert values.tolist() == [1, 20, 30]


def test_integers_made_from_reals_are_unknown() -> None:
    clock = ComputedClock(MEMORY)
    with clock:
        ids = torch.rand(4, device=META).argmax()
    assert clock.values(ids) is None


def test_ids_that_nobody_knows_are_bounded_and_said() -> None:
    class Nearest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codes = nn.Embedding(10, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.codes(x.argmax(dim=1))
            return y

    model = computed(Nearest, torch.rand(3, 5))
    assert model.variables[0].max_touched_rows == 3
    bound = "the ids of codes.weight depend on values that only a run knows: touched rows are the most there can be"
    assert bound in model.notes
    assert model.timeline.source == "computed"
    assert "computed, not measured" in model.timeline.note


def test_small_passes_say_that_launches_may_take_longer() -> None:
    def notes(num_rows: int) -> list[str]:
        model = computed(lambda: nn.Sequential(nn.Linear(100, 400), nn.ReLU()), torch.rand(num_rows, 100))
        return [note for note in model.notes if "launches are not counted" in note]

    [note] = notes(8)
    # Forward: the layer, the activation and the mean. Backward has at least as many.
    assert int(note.split()[0]) >= 6
    assert notes(2_000_000) == []


class Tied(nn.Module):
    """Two names for one weight, and ids in a buffer."""

    position_ids: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(10, width)
        self.positions = nn.Embedding(10, width)
        self.head = nn.Linear(width, 10, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("position_ids", torch.arange(4) // 2 * 2)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(self.words(ids) + self.positions(self.position_ids))
        return y


@pytest.mark.parametrize("width", [lambda: 4, lambda: int(torch.linspace(1, 4, 4)[3].item())])
def test_a_model_that_asks_for_values_while_it_is_built(width: Callable[[], int]) -> None:
    model = computed(lambda: Tied(width()), torch.tensor([[1, 2, 3, 3]]))
    assert [(v.name, v.aliases, v.kind) for v in model.variables] == [
        ("words.weight", ("head.weight",), "dense"),
        ("positions.weight", (), "embedding"),
    ]
    assert model.variable("positions.weight").max_touched_rows == 2


def test_a_device_has_rates_and_shares() -> None:
    with pytest.raises(InputError, match="is no rate"):
        DeviceRate(name="dead", peak_operations=0, peak_bytes=1)
    with pytest.raises(InputError, match="is no share"):
        DeviceRate(name="proud", peak_operations=1, peak_bytes=1, operations_share=1.5)
