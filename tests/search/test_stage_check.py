"""Whether a study searches stages: tasks whose ranks would refuse them are found before the first trial."""

from dataclasses import replace
from pathlib import Path

import pytest

from autosync.search.stage_check import checked_cuts, needs_cuts, why_undivided_study
from autosync.search.study_folder import StudySettings
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model_file import model_of
from tests.helpers.staged_models import chain, nodes

TASKS = Path(__file__).with_name("divisible.py")
CLUSTER = ClusterSpec(
    name="pair", nodes=(Node(name="this", host="localhost", devices=2, bandwidth_out=1e9, bandwidth_in=1e9),)
)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("task", ""),
        ("with_batch_norm", "a forward pass changes 1."),
        ("with_a_sum", "the mean of theirs"),
        ("undeclared", "its batches have 4 examples, and the task declares a batch_size of 1"),
        ("unequal", "cannot be divided"),
        ("with_a_mapped_function", "vmap"),
    ],
)
def test_a_task_is_checked_as_ranks_check_it(name: str, reason: str) -> None:
    target = f"{TASKS}:{name}"
    checked = checked_cuts(target, model_of(target, cuts=True), CLUSTER)
    why = why_undivided_study(StudySettings(name="s", task=target), checked, CLUSTER)
    assert bool(why) == bool(reason)
    assert reason in why
    # Microbatches are timed only where stages may compute them.
    assert bool(checked.timeline.sizes) == (not reason)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("with_a_lazy_layer", "its first step cannot be checked (RuntimeError: "),
        ("with_a_hooked_step", "the optimizer has a hook after its step"),
    ],
)
def test_what_no_profile_shows_is_found_by_the_check(name: str, reason: str) -> None:
    target = f"{TASKS}:{name}"
    model = model_of(target, cuts=True)
    assert model.timeline.cuts
    checked = checked_cuts(target, model, CLUSTER)
    assert reason in why_undivided_study(StudySettings(name="s", task=target), checked, CLUSTER)


def test_studies_without_stages_say_why() -> None:
    model, cluster = chain(4), nodes(1, 1)
    of_task = StudySettings(name="s", task="model.py")
    assert why_undivided_study(of_task, model, cluster) == ""
    assert why_undivided_study(replace(of_task, task="chain.yaml"), model, cluster) == ""
    assert "stock DDP" in why_undivided_study(replace(of_task, target="ddp"), model, cluster)
    assert "loss.backward()" in why_undivided_study(replace(of_task, is_script=True), model, cluster)
    assert "one worker" in why_undivided_study(of_task, model, nodes(1))
    assert "accumulates" in why_undivided_study(of_task, replace(model, accumulation_steps=2), cluster)


def test_profiles_look_for_cuts_where_stages_may_be_searched() -> None:
    assert needs_cuts("autosync", CLUSTER)
    assert not needs_cuts("ddp", CLUSTER)
    assert not needs_cuts("autosync", replace(CLUSTER, backend="nccl"))
    assert not needs_cuts("autosync", nodes(1))
