"""Profiles of small models that are really run: orders, kinds and the out-of-the-ordinary. No time's size matters."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autosync.specs.model import ModelSpec
from autosync.specs.profile.device_rates import ZOO_RATE
from autosync.specs.profile.run import profile
from tests.helpers.profile_tasks import kinds, orders, task

torch.set_num_threads(1)
IDS = torch.tensor([[1, 3, 3], [5, 1, 3]])


@pytest.fixture(params=["measured", "computed"])
def run(request: pytest.FixtureRequest) -> Callable[..., ModelSpec]:
    """Both ways to profile: all facts but the times must come out alike. The rate has no notes of its own."""
    return lambda task, **options: profile(task, times=request.param, **{"steps": 2, "rate": ZOO_RATE} | options)


def test_a_chain_is_used_forwards_and_ready_backwards(run: Callable[..., ModelSpec]) -> None:
    model = run(task(lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)), name="chain", batch_size=4))
    assert orders(model) == (["2.bias", "2.weight", "0.bias", "0.weight"], [1, 1, 0, 0])
    assert kinds(model) == {"0.weight": "linear", "0.bias": "dense", "2.weight": "linear", "2.bias": "dense"}
    assert [v.factor_rows for v in model.variables] == [4, None, 4, None]
    assert [s.module for s in model.timeline.forward] == ["0", "2"]
    assert [(s.module, s.variables) for s in model.timeline.backward] == [
        ("2", ("2.bias", "2.weight")),
        ("0", ("0.bias", "0.weight")),
    ]
    assert [s.variables for s in model.timeline.optimizer] == [("0.weight", "0.bias"), ("2.weight", "2.bias")]
    assert model.timeline.seconds > 0
    assert (model.name, model.batch_size, model.notes, model.untrained) == ("chain", 4, (), ())


def test_tokens_are_rows_of_the_factors(run: Callable[..., ModelSpec]) -> None:
    model = run(task(lambda: nn.Linear(8, 2), inputs=torch.ones(3, 5, 8)))
    assert model.variable("weight").factor_rows == 15
    assert model.timeline.forward[0].module == "Linear"


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, None), (torch.bfloat16, 15), (torch.float64, 15)])
def test_a_layer_under_autocast_has_no_factors(
    run: Callable[..., ModelSpec], dtype: torch.dtype, rows: int | None
) -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 2, dtype=dtype)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y: Tensor = self.head(x)
            return y.float()

    model = run(task(Cast, inputs=torch.ones(3, 5, 8, dtype=dtype)))
    assert model.variable("head.weight").factor_rows == rows


class Branches(nn.Module):
    """Declared in one order, called in another."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 1, bias=False)
        self.first = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.first(x))
        return y


def test_order_is_that_of_the_run_and_not_of_the_declaration(run: Callable[..., ModelSpec]) -> None:
    assert orders(run(task(Branches))) == (["last.weight", "first.weight"], [1, 0])


class Language(nn.Module):
    """An embedding that is the output layer as well: by the same parameter, or taken in hand by the model."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8)
        self.middle = nn.Linear(8, 8, bias=False)
        self.tied = tied
        if tied:
            self.head = nn.Linear(8, 10, bias=False)
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.middle(self.words(ids))
        return self.head(x) if self.tied else functional.linear(x, self.words.weight)  # type: ignore[no-any-return]


def test_a_tied_weight_is_one_dense_variable_ready_at_its_last_contribution(run: Callable[..., ModelSpec]) -> None:
    model = run(task(lambda: Language(tied=True), inputs=IDS))
    assert orders(model) == (["middle.weight", "words.weight"], [1, 0])
    assert kinds(model) == {"words.weight": "dense", "middle.weight": "linear"}
    assert model.variable("words.weight").aliases == ("head.weight",)
    assert "words.weight is tied with head.weight" in model.notes
    assert [s.module for s in model.timeline.forward] == ["words", "middle", "head"]
    assert model.timeline.forward[2].variables == ("words.weight",)


def test_an_embedding_used_outside_of_its_module_is_dense(run: Callable[..., ModelSpec]) -> None:
    model = run(task(lambda: Language(tied=False), inputs=IDS))
    assert kinds(model)["words.weight"] == "dense"
    assert model.notes == ("words.weight is also used outside of its embedding: its gradient is dense",)


@pytest.mark.parametrize("sparse", [True, False])
def test_touched_rows_are_counted_the_same_for_dense_and_sparse(run: Callable[..., ModelSpec], *, sparse: bool) -> None:
    model = run(task(lambda: nn.Embedding(10, 4, sparse=sparse), inputs=IDS))
    variable = model.variable("weight")
    assert (variable.kind, variable.touched_rows, variable.max_touched_rows) == ("embedding", 3.0, 3)
    assert variable.sparse is sparse


def test_a_sparse_gradient_of_what_is_no_embedding_is_noted(run: Callable[..., ModelSpec]) -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Parameter(torch.zeros(5))

        def forward(self, ids: Tensor) -> Tensor:
            return torch.gather(self.scores, 0, ids.flatten().clamp(max=4), sparse_grad=True)

    model = run(task(Picks, inputs=IDS))
    variable = model.variable("scores")
    assert (variable.kind, variable.sparse) == ("dense", False)
    assert model.notes == ("scores has a sparse gradient and is no embedding: taken as dense",)


def test_padding_is_not_touched(run: Callable[..., ModelSpec]) -> None:
    model = run(task(lambda: nn.Embedding(10, 4, padding_idx=3), inputs=IDS))
    assert model.variable("weight").max_touched_rows == 2


def test_bags_and_ids_made_by_the_model_are_embeddings_too(run: Callable[..., ModelSpec]) -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(10, 4)
            self.positions = nn.Embedding(16, 4)

        def forward(self, ids: Tensor) -> Tensor:
            positions = torch.arange(ids.shape[1], device=ids.device).clamp(max=1)
            positions[0] = 7
            y: Tensor = self.bag(ids) + self.positions(positions).sum(0)
            return y

    model = run(task(Positions, inputs=IDS))
    assert [(v.kind, v.max_touched_rows) for v in model.variables] == [("embedding", 3), ("embedding", 2)]


def test_rows_differ_from_step_to_step(run: Callable[..., ModelSpec]) -> None:
    numbers = iter([*[[1, 2, 3]] * 2, [1, 1, 1], [1, 2, 2], [4, 4, 4], [5, 5, 5]])

    def batch(generator: torch.Generator) -> Tensor:
        return torch.tensor(next(numbers))

    variable = run(task(lambda: nn.Embedding(10, 4), batch=batch), steps=1 + 1).variables[0]
    assert variable.touched_rows in (1.0, 1.5, 2.0)
    assert variable.max_touched_rows in (1, 2, 3)


def test_accumulated_microsteps_share_their_rows(run: Callable[..., ModelSpec]) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10, 8)
            self.head = nn.Linear(8, 2)

        def forward(self, ids: Tensor) -> Tensor:
            y: Tensor = self.head(self.words(ids))
            return y

    batches = iter([IDS, IDS + 1] * 10)
    model = run(task(Both, batch=lambda generator: next(batches), accumulation_steps=2))
    assert (model.variable("words.weight").touched_rows, model.variable("head.weight").factor_rows) == (6.0, 12)
    assert model.accumulation_steps == 2
    assert [s.module for s in model.timeline.forward] == ["words", "head"]
    assert any("accumulate over 2 microsteps" in note for note in model.notes)


class Odd(nn.Module):
    """A frozen layer, one that is never called, and one that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.idle = nn.Linear(8, 8)
        self.twice = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.twice(self.twice(self.frozen(x)))
        return y


def test_what_is_frozen_idle_or_used_twice_is_said(run: Callable[..., ModelSpec]) -> None:
    model = run(task(Odd))
    assert [v.name for v in model.variables] == ["idle.weight", "idle.bias", "twice.weight"]
    assert {v.name: v.ready for v in model.variables} == {"twice.weight": 0, "idle.bias": 1, "idle.weight": 2}
    assert set(kinds(model).values()) == {"dense"}
    assert [(u.name, u.shape, u.reason) for u in model.untrained] == [
        ("frozen.weight", (8, 8), "frozen"),
        ("frozen.bias", (8,), "frozen"),
    ]
    assert [(s.module, s.variables) for s in model.timeline.forward] == [
        ("frozen", ("idle.bias", "idle.weight")),
        ("twice", ("twice.weight",)),
        ("twice", ("twice.weight",)),
    ]
    assert model.notes == (
        "2 parameters got no gradient in the profiled steps, and are taken as ready last: idle.weight, idle.bias",
        "twice is called 2 times a microstep",
        "2 parameters are frozen: frozen.weight, frozen.bias",
    )
    assert model.num_parameters == 64 + 72


class Reaching(nn.Module):
    """ParameterUses a module's weight before the module is called, and one whose module never is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)
        self.store = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) @ self.second.weight
        y: Tensor = self.second(functional.linear(x, self.store.weight)) * self.scale
        return y


def test_a_weight_is_used_where_the_first_code_reaches_for_it(run: Callable[..., ModelSpec]) -> None:
    model = run(task(Reaching))
    assert [s.module for s in model.timeline.forward] == ["Reaching", "first", "second"]
    uses = {variable.name: variable.use for variable in model.variables}
    # `scale` belongs to the model itself, which is called first; `second` and `store` are reached for within `first`.
    assert uses == {"scale": 0, "first.weight": 1, "second.weight": 1, "store.weight": 1}
    assert set(model.timeline.forward[1].variables) == {"first.weight", "second.weight", "store.weight"}
    assert kinds(model)["second.weight"] == "dense"


def test_parameters_of_several_types_stand_side_by_side(run: Callable[..., ModelSpec]) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow = nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
            self.wide = nn.Linear(8, 1, bias=False, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.wide(self.narrow(x.bfloat16()).double())
            return y

    model = run(task(Mixed))
    assert [(v.dtype, v.kind, v.num_bytes) for v in model.variables] == [
        ("bfloat16", "linear", 128),
        ("float64", "linear", 64),
    ]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_calls_modules_again_but_uses_them_once(*, reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8, bias=False)
            self.inner = nn.Linear(8, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(self.inner, self.first(x), use_reentrant=reentrant)
            return y

    model = profile(task(Checkpointed), steps=1)
    assert orders(model) == (["inner.weight", "first.weight"], [1, 0])
    assert [s.module for s in model.timeline.forward] == ["first", "inner"]
    # Reentrant checkpointing is a custom function: nobody sees what its backward does with the weight.
    assert kinds(model)["inner.weight"] == ("dense" if reentrant else "linear")
    assert any("hides in a custom autograd function" in note for note in model.notes) is reentrant


def test_a_program_that_changes_from_step_to_step_is_said() -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y: Tensor = self.experts[self.calls % 2](x)
            return y

    model = profile(task(Fickle), steps=3)
    assert sorted(v.ready for v in model.variables) == [0, 1]
    text = "\n".join(model.notes)
    assert "the order in which gradients become ready changes: 2 of 3" in text
    assert "got a gradient in 1 of 3 microsteps: taken as ready last" in text
    assert "the modules called change" in text


def test_a_lazy_module_has_its_shape_after_the_first_batch() -> None:
    assert profile(task(lambda: nn.LazyLinear(3)), steps=1).variable("weight").shape == (3, 8)


def test_a_parameter_without_elements_has_nothing_to_synchronise() -> None:
    class Empty(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 2)
            self.nothing = nn.Parameter(torch.zeros(0))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.nothing.sum()

    model = profile(task(Empty), steps=1)
    assert [(u.name, u.shape) for u in model.untrained] == [("nothing", (0,))]


def test_clipping_and_scaling_are_carried_and_said(run: Callable[..., ModelSpec]) -> None:
    model = run(task(lambda: nn.Linear(8, 2), clip_norm=1, loss_scaling=True))
    assert (model.clip_norm, model.loss_scaling) == (1.0, True)
    assert model.notes == (
        "the gradient is clipped to norm 1 (counted with the update)",
        "the loss is scaled in training and not in the profile",
    )


def test_profiling_leaves_the_callers_random_numbers_alone(run: Callable[..., ModelSpec]) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    run(task(lambda: nn.Linear(8, 2)))
    assert torch.equal(torch.rand(2), expected)


def test_the_same_task_has_the_same_computed_profile() -> None:
    first, second = (profile(task(Odd), times="computed", steps=2) for _ in range(2))
    assert first == second


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
def test_a_gpu_has_the_same_facts_and_its_own_times() -> None:
    there = profile(task(Branches), device="cuda", steps=2)
    here = profile(task(Branches), steps=2)
    assert there.variables == here.variables
    assert there.timeline.device == torch.cuda.get_device_name()
    assert there.timeline.seconds > 0


def test_no_gpu_is_no_fault_of_the_input() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(Exception, match="no CUDA device here; profile with --device cpu"):
        profile(task(Branches), device="cuda")
