"""Stages: their rules, their form in files, and their words."""

from dataclasses import replace
from typing import Any

import pytest

from autosync.documents import parse_document
from autosync.errors import DoesNotApplyError
from autosync.strategy import legality
from autosync.strategy.canonical import strategy_id
from autosync.strategy.codecs import Cast
from autosync.strategy.columns import Numbering
from autosync.strategy.describe import describe
from autosync.strategy.diff import diff, format_diff
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.emit.ddp import settings_for
from autosync.strategy.files import dump_strategy, parse_strategy
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.stages import (
    ModelStage,
    bytes_of_microbatch,
    holders_of_variables,
    stages_of_variables,
)
from autosync.strategy.synchronisers.sharded import Sharded
from tests.helpers.staged_models import chain, nodes

MODEL = chain(5, tied=[(0, 4)])
CLUSTER = nodes(1, 1, 1)
STAGES = (ModelStage(before=0, ranks=(0,)), ModelStage(before=2, ranks=(1, 2)))
DIVIDED = divided_strategy(MODEL, STAGES, 6)


def _problems(model: Any = MODEL, **fields: Any) -> str:
    return "; ".join(map(str, legality.problems(replace(DIVIDED, **fields), model, CLUSTER)))


def _stages(*places: tuple[int, tuple[int, ...]]) -> tuple[ModelStage, ...]:
    return tuple(ModelStage(before=before, ranks=ranks) for before, ranks in places)


def test_a_division_is_legal_and_reads_itself_back() -> None:
    assert _problems() == ""
    fields = dump_strategy(DIVIDED)
    assert fields["stages"] == [{"before": 0, "ranks": [0]}, {"before": 2, "ranks": [1, 2]}]
    assert fields["microbatches"] == 6
    assert "schedule" not in fields
    assert parse_strategy(parse_document(repr(fields).replace("'", '"'), file="s.json")) == DIVIDED


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"microbatches": 5}, "they divide the global batch of 12 examples evenly"),
        ({"microbatches": 1}, "each of a stage's 2 ranks computes one"),
        ({"stages": _stages((0, (0,)), (9, (1, 2)))}, "no cut before segment 9"),
        ({"stages": _stages((1, (0,)), (2, (1, 2)))}, "the first stage begins before segment 1"),
        ({"stages": _stages((0, (0,)), (2, (1,)))}, "rank 2 in no stage"),
        ({"stages": _stages((0, (0,)), (2, (1, 7)))}, "the workers are ranks 0 to 2"),
        ({"stages": ()}, "6 microbatches (microbatches pass through stages"),
        ({"overlap": "forward"}, "forward with stages"),
        ({"shares": (2, 4, 6)}, "uneven shares with stages"),
    ],
)
def test_rules(fields: dict[str, Any], told: str) -> None:
    assert told in _problems(**fields)


SPARSE = (
    replace(MODEL.variables[0], kind="embedding", touched_rows=1.0, max_touched_rows=1, sparse=True),
    *MODEL.variables[1:],
)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"accumulation_steps": 2}, "accumulates"),
        ({"clip_norm": 1.0, "variables": SPARSE}, "clips sparse gradients"),
        ({"loss_scaling": True}, "scales its loss"),
        ({"weighs": True}, "weighs its batches"),
        ({"timeline": replace(MODEL.timeline, cuts=())}, "autosync profile MODEL.py --cuts"),
        ({"timeline": replace(MODEL.timeline, cuts=(), uncut="it reads values")}, "cannot be cut (it reads values)"),
    ],
)
def test_tasks_that_stages_do_not_train(fields: dict[str, Any], told: str) -> None:
    assert told in _problems(replace(MODEL, **fields))


def test_messages_are_all_reduces_among_the_ranks_that_hold_their_parts() -> None:
    whole = Message(parts=tuple(variable.name for variable in MODEL.variables))
    assert "the same ranks hold all parts of a message" in _problems(messages=(whole,))
    first, *others = DIVIDED.messages
    assert "the ranks of a stage all-reduce" in _problems(messages=(replace(first, synchroniser=Sharded()), *others))
    coded = replace(first, codec=Cast(dtype="bfloat16"))
    assert "gradients of stages travel as they are" in _problems(messages=(coded, *others))


def test_a_tied_weight_belongs_to_the_ranks_of_both_stages() -> None:
    assert stages_of_variables(STAGES, MODEL)["w0"] == (0, 1)
    holders = holders_of_variables(STAGES, MODEL)
    assert holders["w0"] == (0, 1, 2)
    assert (holders["w1"], holders["w2"]) == ((0,), (1, 2))


def test_uses_outside_a_variables_own_module_count() -> None:
    cuts = [replace(cut, uses=("w1",)) if cut.before == 3 else cut for cut in MODEL.timeline.cuts]
    model = replace(MODEL, timeline=replace(MODEL.timeline, cuts=tuple(cuts)))
    assert stages_of_variables(STAGES, model)["w1"] == (0, 1)


def test_bytes_that_do_not_grow_are_sent_with_each_microbatch() -> None:
    cut = MODEL.timeline.cuts[1]
    assert (cut.num_bytes, cut.constant_bytes, cut.fixed_constant_bytes) == (32, 8, 8)
    assert bytes_of_microbatch(cut, MODEL, 2) == (16 + 8, 16)
    assert bytes_of_microbatch(replace(cut, num_bytes=33), MODEL, 2) is None


def test_words() -> None:
    assert "divided into 2 stages on ranks 0, 1+2, with 6 microbatches in the order 1f1b" in describe(DIVIDED, MODEL)
    other = replace(DIVIDED, microbatches=12, stages=_stages((0, (1,)), (3, (0, 2))))
    text = format_diff(diff(DIVIDED, other))
    assert "the whole step: stages: 0:0 2:1+2 -> 0:1 3:0+2" in text
    assert "the whole step: microbatches: 6 -> 12" in text
    assert strategy_id(DIVIDED, MODEL, CLUSTER) != strategy_id(replace(DIVIDED, schedule="gpipe"), MODEL, CLUSTER)


def test_what_cannot_carry_stages_out_says_so() -> None:
    with pytest.raises(DoesNotApplyError, match="cannot be predicted"):
        Numbering(MODEL).encode([DIVIDED])
    with pytest.raises(DoesNotApplyError, match="stages"):
        settings_for(DIVIDED, MODEL, CLUSTER)
    assert settings_for(Strategy(messages=(Message(parts=tuple(v.name for v in MODEL.variables)),)), MODEL, CLUSTER)
