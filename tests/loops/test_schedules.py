"""Cuts, schedules and their proofs. A schedule that was tampered with has no proof."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autosync
from autosync.loops.affine import Affine, never_equal
from autosync.loops.choosing import choose
from autosync.loops.dependences import LoopAnalysis, analyse
from autosync.loops.load import load_loop
from autosync.loops.proof import ScheduleConflictError, prove
from autosync.loops.record_blocks import balanced_cuts, block_of, split
from autosync.loops.schedules import Cell, LoopSchedule, rotation_cells, wavefront_cells

_FORMS = st.builds(
    lambda i, j, constant: Affine(tuple((name, factor) for name, factor in (("i", i), ("j", j)) if factor), constant),
    st.integers(-4, 4),
    st.integers(-4, 4),
    st.integers(-6, 6),
)


@given(values=st.lists(st.integers(-5, 30), max_size=60), num_blocks=st.integers(1, 6))
def test_cuts_balance_as_well_as_contiguous_blocks_can(values: list[int], num_blocks: int) -> None:
    array = np.array(values, dtype=np.int64)
    cuts = balanced_cuts(array, num_blocks)
    assert len(cuts) == num_blocks - 1
    assert list(cuts) == sorted(cuts)
    if values:
        fullest = int(np.bincount(block_of(array, cuts)).max())
        counts = [values.count(value) for value in sorted(set(values))]
        assert fullest == _least_fullest(counts, num_blocks)


def _least_fullest(counts: list[int], num_blocks: int) -> int:
    """By trying every cut, from the back."""
    if num_blocks == 1 or not counts:
        return sum(counts)
    return (
        min(max(sum(counts[:cut]), _least_fullest(counts[cut:], num_blocks - 1)) for cut in range(1, len(counts) + 1))
        if num_blocks < 3 or len(counts) < 8
        else _least_by_table(counts, num_blocks)
    )


def _least_by_table(counts: list[int], num_blocks: int) -> int:
    sums = [sum(counts[:end]) for end in range(len(counts) + 1)]
    best = sums[:]
    for _ in range(num_blocks - 1):
        best = [min(max(best[cut], sums[end] - sums[cut]) for cut in range(end + 1)) for end in range(len(sums))]
    return best[-1]


@given(first=_FORMS, second=_FORMS)
def test_forms_that_never_meet(first: Affine, second: Affine) -> None:
    grid = np.array([(i, j) for i in range(-9, 10) for j in range(-9, 10)], dtype=[("i", "i8"), ("j", "i8")])
    meet = bool(set(first.values(grid)) & set(second.values(grid)))
    if never_equal(first, second):
        assert not meet


@given(form=_FORMS, factor=st.integers(-3, 3).filter(bool))
def test_directions_ignore_factors(form: Affine, factor: int) -> None:
    assert form.times(factor).direction == form.direction
    if form.terms:
        k = form.multiple_of(form.direction)
        assert form.direction.times(k).terms == form.terms


@given(num_ranks=st.integers(1, 6), blocks=st.integers(1, 3))
def test_rotations_meet_every_block_once(num_ranks: int, blocks: int) -> None:
    for cells in (rotation_cells(num_ranks, blocks * num_ranks), wavefront_cells(num_ranks, blocks * num_ranks)):
        pairs = [(cell.rank, cell.rotating) for cell in cells]
        assert len(set(pairs)) == len(pairs) == num_ranks * blocks * num_ranks
        for kind in ("rank", "rotating"):
            held = [(cell.step, getattr(cell, kind)) for cell in cells]
            assert len(set(held)) == len(held)


@pytest.fixture(scope="module")
def factors() -> tuple[LoopAnalysis, LoopSchedule, np.ndarray]:
    loop = load_loop(str(Path(__file__).parents[2] / "examples/loops/matrix_factorisation.py"))
    records = loop.load_records()[:500]
    analysis = analyse(loop, records)
    schedule = choose(analysis, records, 3)
    assert isinstance(schedule, LoopSchedule)
    return analysis, schedule, records


def test_a_proof_tells_the_rows_of_each_rank(factors: tuple[LoopAnalysis, LoopSchedule, np.ndarray]) -> None:
    analysis, schedule, records = factors
    proof = prove(analysis, schedule, split(schedule, records), records)
    assert sum(proof.num_records) == len(records)
    assert len(proof.steps) == 6 * 2
    assert proof.fullest >= 1


def _all_on_one_block(schedule: LoopSchedule) -> LoopSchedule:
    return replace(schedule, cells=tuple(replace(cell, step=0) for cell in schedule.cells))


TAMPERED = {
    "one time step": _all_on_one_block,
    "cut elsewhere": lambda one: replace(one, stay=Affine.field("item")),
    "rotates elsewhere": lambda one: replace(one, rotate=Affine.field("user")),
    "a block twice": lambda one: replace(
        one, cells=(*one.cells, Cell(step=one.num_steps, rank=0, rotating=one.cells[0].rotating))
    ),
    "a block left out": lambda one: replace(one, cells=one.cells[:-1]),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_wrong_schedule_has_no_proof(how: str, factors: tuple[LoopAnalysis, LoopSchedule, np.ndarray]) -> None:
    analysis, schedule, records = factors
    wrong = TAMPERED[how](schedule)
    with pytest.raises(ScheduleConflictError):
        prove(analysis, wrong, split(wrong, records), records)


def test_records_in_two_blocks_have_no_proof(factors: tuple[LoopAnalysis, LoopSchedule, np.ndarray]) -> None:
    analysis, schedule, records = factors
    blocks = split(schedule, records)
    blocks[0, 0] = np.append(blocks[0, 0], blocks[1, 0][:1])
    with pytest.raises(ScheduleConflictError, match="no block or in two"):
        prove(analysis, schedule, blocks, records)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shape": (0,)}, "1 to 4 whole numbers"),
        ({"shape": 3}, "a tuple"),
        ({"shape": (3,), "dtype": "U3"}, "a type of numbers"),
        ({"shape": (3,), "updates": "sometimes"}, "one of ordered, commutative, buffered"),
        ({"shape": (3,), "merge_every": 0}, "1 or more"),
        ({"shape": (3,), "initial": "zeros"}, "a number, or a function"),
    ],
)
def test_tables_are_checked(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(autosync.errors.InputError, match=words):
        autosync.Table(**arguments)  # type: ignore[arg-type]
