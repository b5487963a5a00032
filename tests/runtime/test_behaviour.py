"""What else a training script may do with a parallelized model: it is right, or it is refused by name."""

from collections.abc import Callable
from typing import Any

import pytest

Answers = dict[tuple[str, str], list[Any]]

# For each case the start of every rank's answer under a strategy that updates on all workers, and under one that
# updates in shards.
EXPECTED = {
    "still_exact_after_refusals": ("", ""),
    "second_backward": ("", "OperationError: the gradient of 0.weight was there already when a backward pass"),
    "skipped_step": ("", ""),
    "clips_undeclared": ("", "OperationError: the gradient of 0.weight belongs to the engine until its update"),
    "state_dict": ("4", "OperationError: the optimizer's state of 0.bias is where it is updated"),
    "resumes": ("", ""),
    "released_is_free": ("", ""),
    "partly_optimized": ("2.weight, 2.bias", "2.weight, 2.bias"),
}
_NO_BACKWARD = "OperationError: optimizer.step() was called without a synchronised backward pass before it"
_UNKNOWN = "OperationError: the model is not parallelized: parallelize(model, optimizer, bundle) comes first"
# What is refused where every worker's own optimizer updates; DDP makes steps without new gradients.
REFUSALS = {
    "step without backward": "nothing raised",
    "step twice": "nothing raised",
    "closure": "nothing raised",
    "step without sync": f"{_NO_BACKWARD}: the last one was under no_sync, or under DistributedDataParallel another "
    "one after the same forward pass, and its gradients are those of this rank alone (the last backward pass of a step "
    "follows a forward pass outside of no_sync)",
    "parallelize twice": "OperationError: the model is parallelized already: release(model) comes first",
    "release twice": _UNKNOWN,
    "no_sync of a stranger": _UNKNOWN,
}
# And where the engine updates.
REFUSALS_OF_ENGINE = {
    **REFUSALS,
    "step twice": _NO_BACKWARD,
    "closure": _NO_BACKWARD,
    "step without sync": _NO_BACKWARD,
}
SHARED, OWNED = "all_reduce_per_variable", "sharded"
# Tasks that train as under DDP, with the strategies of their bundles.
EXACT = (("half", OWNED), ("shared", SHARED), ("shared", OWNED))
# Where the first rank is interrupted, under which strategy, and how it is refused to go on.
INTERRUPTED = {
    "in_backward": (SHARED, "OperationError: the end of a backward pass was cut short"),
    "in_step": (OWNED, "OperationError: optimizer.step() was cut short"),
}


def test_a_script_is_served_or_refused(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("one node")
    bundles = {name: ranks.bundle(name, "small") for name in (SHARED, OWNED)}
    server = ranks.bundle("ps_load_balanced", "small")
    cases: list[tuple[str, dict[str, Any]]] = [
        (case, {"bundle": bundle}) for case in EXPECTED for bundle in bundles.values()
    ]
    others = {
        "one_after_another": ({"bundles": [*bundles.values(), server, bundles[SHARED]]}, [""] * 2),
        "different_bundles": (
            {"bundles": list(bundles.values())},
            ["OperationError: rank 1 has strategy "] * 2,
        ),
        "wrong_optimizer": (
            {"bundle": bundles[OWNED]},
            ["OperationError: the optimizer is torch.optim.sgd.SGD; the bundle was made for Adam"] * 2,
        ),
        "one_rank_refuses": (
            {"bundle": bundles[OWNED]},
            ["OperationError: rank 1: the optimizer is torch", "OperationError: the optimizer is torch"],
        ),
        "first_rank_refuses": (
            {"bundle": bundles[OWNED]},
            ["OperationError: the optimizer is torch", "OperationError: rank 0: the optimizer is torch"],
        ),
        "refused_at_last": (
            {"bundle": ranks.factors_bundle()},
            ["OperationError: 0.weight belongs to a _Layer, not to one Linear layer"] * 2,
        ),
        "late_to_meet": ({"bundle": bundles[OWNED]}, ["OperationError: rank 1 has not answered: "] * 2),
        # What the engine updates in shards nobody holds whole; all else is synchronised when backward returns.
        "gradients_when_backward_returns": (
            {"bundle": ranks.mixed_bundle()},
            ["same; OperationError: the gradient of 2.weight belongs to the engine"] * 2,
        ),
    }
    exact = [(task, ranks.bundle(name, task)) for task, name in EXACT]
    cases += [("exact", {"task": task, "bundle": bundle, "hand_off": False}) for task, bundle in exact]
    cases += [(case, arguments) for case, (arguments, _) in others.items()]
    expected = [answer for pair in EXPECTED.values() for answer in pair] + [""] * len(exact)
    expected_of = [[answer, answer] for answer in expected] + [list(pair) for _, pair in others.values()]
    last = [
        *((f"interrupt_cases:{case}", {"bundle": bundles[name]}) for case, (name, _) in INTERRUPTED.items()),
        *(("refusals", {"bundle": bundle}) for bundle in bundles.values()),
        *((case, {"bundle": bundles[OWNED]}) for case in ("failing_engine", "late_rank")),
    ]
    # One launch for all: processes take seconds to start.
    answers = ranks.run([*cases, *last])
    for rank, given in enumerate(answers):
        for (case, arguments), answer, wanted in zip(cases, given, expected_of, strict=False):
            assert str(answer).startswith(wanted[rank]), (rank, case, arguments)
            assert wanted[rank] or answer == "", (rank, case, arguments)
            assert "threads left" not in str(answer)
        assert len(given) == len(cases) + len(last)
        *interrupted, refused, refused_by_engine, failing, late = given[len(cases) :]
        _refused_after_interrupts(rank, interrupted)
        assert (refused, refused_by_engine) == (REFUSALS, REFUSALS_OF_ENGINE)
        _told_of_failures(rank, failing, late)


def _told_of_failures(rank: int, failing: str, late: str) -> None:
    assert failing.startswith(f"OperationError: rank {rank}: reduce_scatter of ")
    assert "the wire is out of order" in failing
    # Who waits is told what for; who comes late finds the others gone.
    assert late.startswith(f"OperationError: rank {rank}: reduce_scatter of ")


def _refused_after_interrupts(rank: int, answers: list[dict[str, str]]) -> None:
    """Check that the first rank, which was interrupted, cannot go on, and that the other one was not disturbed."""
    for answer, (_, words) in zip(answers, INTERRUPTED.values(), strict=True):
        assert set(answer) == (set() if rank else {"step", "step without gradients", "backward", "save"})
        for what, refusal in answer.items():
            assert refusal.startswith(words), (what, refusal)
            assert "start again from a checkpoint" in refusal


@pytest.mark.slow
def test_when_a_rank_dies_the_others_are_told(make_ranks: Callable[[str], Any]) -> None:
    for preset in (SHARED, OWNED):
        ranks = make_ranks("one node")
        told, nothing = ranks.run_one("dies", bundle=ranks.bundle(preset, "small"))
        assert told.startswith("OperationError: rank 0: "), told
        assert " failed: " in told
        assert nothing is None
