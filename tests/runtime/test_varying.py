"""Steps that use different parameters, on real ranks beside stock DDP."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

PRESETS = {
    "ddp": {},
    "all_reduce_per_variable": {"topology": "ring"},
    "bytescheduler": {"slice_bytes": 1024},
    "ps_load_balanced": {},
    "fsdp": {},
}
OPTIMIZERS = ("momentum", "adamw")
EXAMPLE = Path(__file__).parents[2] / "examples/scripts/mixture_of_experts.py"


def random_uses(num_seeds: int, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, dict[str, Any]]]:
    """Cases for pairs of a preset and an optimizer."""
    seeds = list(range(num_seeds))
    return [
        (
            "varying_cases:like_ddp",
            {"preset": preset, "options": PRESETS[preset], "seeds": seeds, "optimizer": optimizer},
        )
        for preset, optimizer in pairs
    ]


def test_random_uses_train_as_under_ddp(make_ranks) -> None:
    """Branches in each rank's own order; called, read without a call, or called for nothing."""
    cases = random_uses(2, zip(PRESETS, itertools.cycle(OPTIMIZERS), strict=False))
    for answers in make_ranks("unequal").run(cases):
        assert answers == [[]] * len(cases)


def test_late_gradients_of_float16_do_not_overflow(make_ranks) -> None:
    presets = ("ddp", "all_reduce_per_variable")
    cases = [("varying_cases:late_gradients_of_float16", {"preset": preset}) for preset in presets]
    for answers in make_ranks("one node").run(cases):
        assert answers == [40_000.0] * len(cases)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_random_differences_hang_nothing(make_ranks) -> None:
    """Each training has five steps, in each of which the four ranks differ."""
    cases = random_uses(40, itertools.product(PRESETS, OPTIMIZERS))
    for answers in make_ranks("four nodes").run(cases, limit_seconds=850):
        assert answers == [[]] * len(cases)


EXPERT_BYTES = 4 * 512 * 512
TRUNK_BYTES = 4 * (8 * 512 + 512)
# What a step may send beside gradients: the agreement and the headers of messages.
REST_BYTES = 5_000


@pytest.fixture
def alone() -> tuple[str, ...]:
    """A command that gives its processes a network of their own, in which no other process sends anything."""
    if not all(shutil.which(tool) for tool in ("ip", "ss", "unshare")):
        pytest.skip("ip, ss or unshare (iproute2, util-linux) is not installed")
    begin = ("unshare", "--net", *(("--map-root-user",) if os.geteuid() else ()), "--")
    tried = subprocess.run([*begin, "ip", "link", "set", "lo", "up"], check=False, capture_output=True)
    if tried.returncode:
        pytest.skip(f"no network namespace can be made here: {tried.stderr.decode().strip()}")
    return (*begin, "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def test_what_no_rank_uses_sends_no_bytes_and_the_example_trains_as_under_ddp(make_ranks, alone) -> None:
    """On two ranks, a sum of n bytes sends 2 n. The first step predicts that everything is used."""
    everything = [list(range(6))] * 2
    chosen = [everything, [[0], [0]], [[], []], [[1, 2], [2, 4]], [[5], []], everything]
    num_used = [6, 1, 0, 3, 1, 6]
    ranks = make_ranks("one node")
    ranks.within = alone
    cases = [
        (
            "varying_cases:bytes_of_steps",
            {"preset": preset, "options": {}, "chosen": chosen, "folder": str(ranks.folder), "by_profile": by_profile},
        )
        for preset, by_profile in (("ddp", False), ("all_reduce_per_variable", True), ("bytescheduler", False))
    ]
    *counted, example = ranks.run([*cases, ("varying_cases:example_by_door", {"path": str(EXAMPLE)})])[0]
    assert example == ""
    for counts in counted:
        for number, sent in zip(num_used, counts, strict=True):
            gradients = 2 * (TRUNK_BYTES + number * EXPERT_BYTES)
            assert gradients <= sent <= 1.002 * gradients + REST_BYTES, counts
