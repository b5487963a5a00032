"""What stages without a flush are refused for, and what would be right."""

from dataclasses import replace

from autosync.errors import Problem
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stages import ModelStage
from tests.helpers.staged_models import chain, nodes

CLUSTER = nodes(1, 1, 1)
STAGES = [ModelStage(before=2 * number, ranks=(number,)) for number in range(3)]


def _problems(model: ModelSpec, stages: list[ModelStage] = STAGES, microbatches: int = 6) -> list[Problem]:
    return legality.problems(divided_strategy(model, stages, microbatches, "stashing"), model, CLUSTER)


def test_stages_that_stash_go_with_any_number_of_microbatches() -> None:
    model = chain(6, batch_size=4)
    for microbatches in (1, 2, 3, 12):
        assert not _problems(model, microbatches=microbatches)
        (problem,) = legality.problems(divided_strategy(model, STAGES, 2, "2bw"), model, CLUSTER)
        assert "3 of its own under way" in problem.rule
    wide = [ModelStage(before=0, ranks=(0, 2)), ModelStage(before=3, ranks=(1,))]
    (problem,) = _problems(model, wide, 3)
    assert "each of a stage's 2 ranks computes equally many" in problem.rule


def test_a_step_has_a_limited_number_of_passes() -> None:
    model = chain(6, batch_size=2**20)
    (problem,) = _problems(model, microbatches=2**15)
    assert problem.what == "32768 microbatches in 3 stages"
    assert "at most 65,536 forward passes" in problem.rule


def test_a_weight_of_two_stages_cannot_be_stashed() -> None:
    (problem,) = _problems(chain(6, tied=[(1, 5)]))
    assert "stashing with w1 in the stages 0 and 2" in problem.what
    assert "2bw" in problem.hint
    assert not _problems(chain(6, tied=[(2, 3)]))


def test_a_stage_that_is_updated_by_itself_knows_no_norm_of_all_gradients() -> None:
    clipping = replace(chain(6), clip_norm=1.0)
    (problem,) = _problems(clipping)
    assert "stashing for a task that clips" in problem.what
    assert "2bw" in problem.hint


def test_one_stage_misses_nothing_and_ranks_have_one_stage_each() -> None:
    model = chain(6)
    (problem,) = _problems(model, [ModelStage(before=0, ranks=(0, 1, 2))])
    assert "one stage" in problem.what
    around = [*STAGES[:2], ModelStage(before=4, ranks=(2,)), ModelStage(before=5, ranks=(0,))]
    assert any("rank 0 in several stages" in one.what for one in _problems(model, around))
