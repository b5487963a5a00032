"""Lossy and stale presets on real ranks do what torch's own hooks, averagers and optimizers do."""

from collections.abc import Callable
from typing import Any

import pytest

TASKS = ("transformer", "convnet")


@pytest.mark.parametrize(
    ("where", "tasks"),
    [
        ("one node", TASKS[:1]),
        pytest.param("one node", TASKS[1:], marks=pytest.mark.slow),
        ("four nodes", TASKS),
    ],
)
def test_presets_are_what_they_are_named_after(
    where: str, tasks: tuple[str, ...], make_ranks: Callable[[str], Any]
) -> None:
    ranks = make_ranks(where)
    cases: list[tuple[str, dict[str, Any]]] = []
    for task in tasks:
        for preset in ("bf16", "fp16"):
            hook = f"{preset}_compress_hook"
            bundle = ranks.bundle(preset, task)
            cases.append(("known_systems_cases:casts", {"task": task, "bundle": bundle, "hook": hook}))
        for case, preset in (("averages", "local_sgd"), ("outer_steps", "diloco")):
            bundle = ranks.bundle(preset, task, every=3)
            cases.append((f"known_systems_cases:{case}", {"task": task, "bundle": bundle, "every": 3}))
    # The hook takes neither parameters without axes nor those whose memory is in another order than their axes.
    bundle = ranks.bundle("power_sgd", "small")
    cases.append(("known_systems_cases:power_sgd", {"task": "small", "bundle": bundle}))
    answers = ranks.run(cases)
    for rank, given in enumerate(answers):
        assert len(given) == len(cases), f"rank {rank}:\n{(ranks.folder / 'log').read_text()}"
        for (case, arguments), answer in zip(cases, given, strict=True):
            check(case.partition(":")[2], arguments, answer, len(answers))


def check(case: str, arguments: dict[str, Any], answer: Any, num_ranks: int) -> None:
    told = f"{case} {arguments}: {answer}"
    if case in ("averages", "outer_steps"):
        assert answer == "", told
        return
    assert isinstance(answer, dict), told
    assert answer["off_exact"] > 1e-5, f"{told}: it changes nothing"
    if case == "power_sgd":
        assert answer["off"] < 1e-10, told
    elif arguments["hook"] == "bf16_compress_hook" and num_ranks > 2 and arguments["task"] == "convnet":
        # Weights lie in another order than their axes, DDP sends them as they lie, and sums depend on the place.
        assert answer["off"] < answer["off_exact"], told
    elif arguments["hook"] == "bf16_compress_hook":
        # The ranks are a power of two, so it does not matter whether one divides before the sum or after it.
        assert answer["differing"] == [], told
    else:
        # float16 has steps of 2^-24 at its lower end, and the hook rounds to them once more.
        assert answer["off"] < max(2.0**-23, answer["off_exact"] if num_ranks > 2 else 0.0), told
