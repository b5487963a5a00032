"""A profile says whether microbatches train the model that their batch trains, with computed times too."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from autosync.specs.model import ModelSpec
from autosync.specs.profile.microbatch_losses import GradientComparison, small_microbatches, why_losses_mix
from autosync.specs.profile.run import profile
from autosync.specs.task import Task

BATCH, WIDTH = 8, 4


def _layers(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *between, nn.Tanh(), nn.Linear(WIDTH, 1))


class _Attention(nn.Module):
    """Attention drops its weights within one function of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.5, batch_first=True)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.encoder(x.unsqueeze(1).expand(-1, 3, -1))
        result: torch.Tensor = self.last(self.attention(rows, rows, rows)[0])
        return result


class _Recurrent(nn.Module):
    """Recurrent layers drop what one gives to the next."""

    def __init__(self, kind: Callable[..., nn.Module], *, packs: bool = False) -> None:
        super().__init__()
        self.layers = kind(WIDTH, WIDTH, num_layers=2, dropout=0.5, batch_first=True)
        self.last = nn.Linear(WIDTH, 1)
        self.packs = packs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.unsqueeze(1).expand(-1, 3, -1)
        if self.packs:
            packed = pack_padded_sequence(rows, torch.full((len(x),), 3), batch_first=True)
            rows = self.layers(packed)[0].data
        else:
            rows, _ = self.layers(rows)
        result: torch.Tensor = self.last(rows)
        return result


def _task(
    model: Callable[[], nn.Module] = _layers,
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda model, x: model(x).square().mean(),
    batch_size: int = BATCH,
) -> Task:
    return Task(
        name="small",
        model=model,
        batch=lambda generator: torch.randn(batch_size, WIDTH, generator=generator),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=batch_size,
    )


def _masked_mean(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    mask = (x[:, :1] > 0).float()
    return (model(x).square() * mask).sum() / (mask.sum() + 1)


def _noisy(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x + torch.randn_like(x)).square().mean()


@pytest.fixture(params=["measured", "computed"])
def profiled(request: pytest.FixtureRequest) -> Callable[[Task], ModelSpec]:
    return lambda task: profile(task, times=request.param, steps=1, cuts=True)


@pytest.mark.parametrize(
    "task",
    [
        _task(),
        _task(batch_size=1),
        _task(lambda: _layers(nn.Dropout(0.5))),
        _task(_Attention),
        _task(lambda: _Recurrent(nn.LSTM)),
        _task(lambda: _Recurrent(nn.GRU)),
        _task(lambda: _Recurrent(nn.RNN)),
        _task(lambda: _layers(nn.LayerNorm(WIDTH))),
        _task(lambda: _layers(nn.BatchNorm1d(WIDTH).eval().requires_grad_(requires_grad=False))),
    ],
    ids=["mean", "one example", "dropout", "attention", "lstm", "gru", "rnn", "layer norm", "frozen batch norm"],
)
def test_microbatches_that_train_the_same_model_are_timed(profiled: Callable[[Task], ModelSpec], task: Task) -> None:
    timeline = profiled(task).timeline
    assert (timeline.mixes, timeline.uncut) == ("", "")
    assert timeline.cuts
    assert len(timeline.sizes) >= 3


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (_task(lambda: _layers(nn.BatchNorm1d(WIDTH))), "a forward pass changes 1."),
        (_task(lambda: _layers(nn.BatchNorm1d(WIDTH, track_running_stats=False))), "the mean of theirs"),
        (_task(loss=lambda model, x: model(x).square().sum()), "the mean of theirs"),
        (_task(loss=_masked_mean), "the mean of theirs"),
        (_task(loss=lambda model, x: functional.normalize(model(x), dim=0).mean()), "the mean of theirs"),
        (_task(loss=_noisy), "draws random numbers besides dropout"),
    ],
    ids=["batch norm", "batch norm without buffers", "sum", "masked mean", "normalised over the batch", "noise"],
)
def test_others_keep_their_cuts_and_say_why(profiled: Callable[[Task], ModelSpec], task: Task, reason: str) -> None:
    timeline = profiled(task).timeline
    assert reason in timeline.mixes
    assert timeline.cuts
    assert timeline.sizes == ()


def test_a_model_for_one_number_of_examples_cannot_be_cut(profiled: Callable[[Task], ModelSpec]) -> None:
    timeline = profiled(_task(loss=lambda model, x: model(x.view(BATCH, WIDTH)).square().mean())).timeline
    assert "a microbatch cannot pass" in timeline.uncut
    assert timeline.cuts == ()


def test_both_ways_of_profiling_find_the_same_cuts() -> None:
    task = _task(lambda: _layers(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)))
    measured, computed = (profile(task, times=times, steps=1, cuts=True).timeline for times in ("measured", "computed"))
    assert computed.cuts == measured.cuts
    seconds = [one.seconds for one in computed.sizes]
    assert seconds == sorted(seconds)


def test_a_model_that_is_larger_than_the_memory_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosync.specs.profile.computed_training.free_bytes", lambda: 100)
    spec = profile(_task(loss=lambda model, x: model(x).square().sum()), times="computed", steps=1, cuts=True)
    assert spec.timeline.mixes == ""
    assert any("too many for this machine's memory" in note for note in spec.notes)


def test_the_pass_of_a_microbatch_leaves_gradients_alone() -> None:
    task, model = _task(), _layers()
    pieces = small_microbatches(torch.randn(BATCH, WIDTH), torch.Tensor)
    assert [len(one) for one in pieces] == [2, 2, 2, 2]
    assert why_losses_mix(task, model, pieces) == ""
    assert all(parameter.grad is None for parameter in model.parameters())
    summed = replace(task, loss=lambda model, x: model(x).square().sum())
    assert "the mean of theirs" in why_losses_mix(summed, model, pieces[:2])


@pytest.mark.parametrize("whole", range(1, 12))
def test_microbatches_have_equally_many_examples(whole: int) -> None:
    pieces = small_microbatches(torch.randn(whole, WIDTH), lambda: torch.randn(1, WIDTH))
    assert 2 <= len(pieces) <= 4
    assert len({len(one) for one in pieces}) == 1


def test_two_microbatches_with_equally_many_words_do_not_hide_a_masked_mean() -> None:
    masks = torch.tensor([[1.0, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]])
    batch = masks * torch.arange(1.0, 7).unsqueeze(1)

    def masked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x.square() * (x > 0)).sum() / (x > 0).sum()

    pieces = small_microbatches(batch, torch.Tensor)
    assert "3 microbatches together" in why_losses_mix(_task(loss=masked), nn.Identity(), pieces)


NUM_WORDS, LENGTH = 11, 6


class EquallyLikely(nn.Module):
    """A language model in which all words are equally likely at first."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, WIDTH, sparse=sparse)
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(WIDTH, NUM_WORDS)
        nn.init.normal_(self.output.weight, std=1e-6)
        nn.init.zeros_(self.output.bias)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.output(self.dropout(self.words(text)))
        return scores


def _unmasked_mean(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    scores = model(text.clamp(min=0))
    return functional.cross_entropy(scores.flatten(0, 1), text.flatten(), ignore_index=-100)


def _text(*num_words: int) -> torch.Tensor:
    """Texts with so many words, padded to one length."""
    text = torch.randint(NUM_WORDS, (len(num_words), LENGTH), generator=torch.Generator().manual_seed(3))
    for row, count in zip(text, num_words, strict=True):
        row[count:] = -100
    return text


UNEVEN, EVEN = (6, 6, 5, 4, 6, 2, 3, 3), (6, 2, 5, 3, 4, 4, 2, 6)
"""The words of texts. Two after each other have equally many in all, or not."""


def test_an_untrained_model_does_not_hide_a_masked_mean() -> None:
    torch.manual_seed(1)
    task, model = _task(loss=_unmasked_mean), EquallyLikely()
    reason = why_losses_mix(task, model, small_microbatches(_text(*UNEVEN), torch.Tensor))
    # All words have about the same loss, so a loss does not show what they weigh.
    assert reason.startswith("the gradient of output.weight from 2 microbatches together is not the mean of theirs")
    assert why_losses_mix(task, model, small_microbatches(_text(*EVEN), torch.Tensor)) == ""
    assert all(one.grad is None for one in model.parameters())


def test_sparse_gradients_are_compared() -> None:
    torch.manual_seed(1)
    task, model = _task(loss=_unmasked_mean), EquallyLikely(sparse=True)
    comparison = GradientComparison(task, model, {"words.weight": model.words.weight})
    assert comparison.why_mixed(small_microbatches(_text(*EVEN), torch.Tensor)) == ""
    uneven = small_microbatches(_text(*UNEVEN), torch.Tensor)
    assert "the gradient of words.weight from 4 microbatches together" in comparison.why_mixed(uneven)


def test_only_gradients_of_the_parameters_that_are_asked_for_are_compared() -> None:
    torch.manual_seed(1)
    task, model = _task(loss=_unmasked_mean), EquallyLikely()
    pieces = small_microbatches(_text(6, 6, 3, 3), torch.Tensor)
    model.words.requires_grad_(requires_grad=False)
    assert GradientComparison(task, model, {"words.weight": model.words.weight}).why_mixed(pieces) == ""
    output = dict(model.output.named_parameters())
    assert "the gradient of weight" in GradientComparison(task, model, output).why_mixed(pieces)


def test_small_gradients_of_a_trained_model_are_roundings() -> None:
    torch.manual_seed(1)
    model = nn.Linear(WIDTH, 1).double()
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    targets = model(x).detach()
    offset = 1.0

    def loss(model: nn.Module, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        # Another number of examples adds another rounding, as sums in another order do.
        return (model(pair[0]) + len(pair[0]) * 1e-8 - pair[1] - offset).square().mean()

    comparison = GradientComparison(_task(loss=loss), model, dict(model.named_parameters()))  # type: ignore[arg-type]
    pieces = [(x[start : start + 2], targets[start : start + 2]) for start in (0, 2)]
    assert comparison.why_mixed(pieces) == ""
    offset = 1e-8
    assert comparison.why_mixed(pieces) == ""
    fresh = GradientComparison(_task(loss=loss), model, dict(model.named_parameters()))  # type: ignore[arg-type]
    assert "is not the mean of theirs" in fresh.why_mixed(pieces)


def test_gradients_that_are_no_numbers_are_not_judged() -> None:
    model = _layers()
    task = _task(loss=lambda model, x: model(x).square().mean() * float("nan"))
    pieces = small_microbatches(torch.randn(BATCH, WIDTH), torch.Tensor)
    assert GradientComparison(task, model, dict(model.named_parameters())).why_mixed(pieces) == ""


def test_uneven_weights_are_seen_when_a_model_has_learned() -> None:
    torch.manual_seed(1)
    model, weigh = nn.Linear(WIDTH, 1), 1.0

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        # Pieces have two examples, and both of them together four.
        return weigh * model(x).square().mean() * (1.0 if len(x) == 2 else factor)

    factor = 1.0
    comparison = GradientComparison(_task(loss=loss), model, dict(model.named_parameters()))
    pieces = [torch.randn(2, WIDTH) for _ in range(2)]
    assert comparison.why_mixed(pieces) == ""
    weigh, factor = 1 / 512, 2.0
    # The first gradients were much larger. What is remembered of them fades.
    found = [comparison.why_mixed(pieces) for _ in range(12)]
    assert found[0] == ""
    assert "is not the mean of theirs" in found[-1]
    factor, weigh = 1.0, 1e-6
    assert all(comparison.why_mixed(pieces) == "" for _ in range(40))


def test_batches_of_different_lengths_have_no_cuts() -> None:
    lengths = iter(range(3, 100))
    task = replace(
        _task(batch_size=1),
        batch=lambda generator: torch.randn(1, next(lengths), WIDTH, generator=generator),
    )
    spec = profile(task, steps=1, cuts=True)
    assert "batches have different shapes" in spec.timeline.uncut


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_recurrent_layers_of_packed_batches_is_left_out(kind: Callable[..., nn.Module]) -> None:
    model = _Recurrent(kind, packs=True)
    assert why_losses_mix(_task(), model, small_microbatches(torch.randn(BATCH, WIDTH), torch.Tensor)) == ""
