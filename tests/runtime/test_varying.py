"""Steps that use different parameters, on real ranks beside stock DDP."""

import os
import shutil
import subprocess

import pytest

PRESETS = {
    "ddp": {},
    "all_reduce_per_variable": {"topology": "ring"},
    "bytescheduler": {"slice_bytes": 128},
    "ps_load_balanced": {},
    "fsdp": {},
}


@pytest.mark.parametrize(
    ("place", "num_seeds"), [("unequal", 6), pytest.param("four nodes", 40, marks=pytest.mark.slow)]
)
def test_random_uses_train_as_under_ddp(make_ranks, place, num_seeds) -> None:
    """Branches in each rank's own order; called, read without a call, or called for nothing."""
    cases = [
        (
            "varying_cases.py:like_ddp",
            {"preset": preset, "options": options, "seeds": list(range(num_seeds)), "optimizer": optimizer},
        )
        for preset, options in PRESETS.items()
        for optimizer in ("momentum", "adamw")
    ]
    for answers in make_ranks(place).run(cases):
        assert answers == [[]] * len(cases)


EXPERT_BYTES = 4 * 512 * 512
TRUNK_BYTES = 4 * (8 * 512 + 512)
# What a step may send beside gradients: the agreement, headers and acknowledgements.
REST_BYTES = 30_000


@pytest.fixture
def alone() -> tuple[str, ...]:
    """A command that gives its processes a network of their own, in which nobody else sends anything."""
    if not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("ip or unshare (iproute2, util-linux) is not installed")
    begin = ("unshare", "--net", *(("--map-root-user",) if os.geteuid() else ()), "--")
    tried = subprocess.run([*begin, "ip", "link", "set", "lo", "up"], check=False, capture_output=True)
    if tried.returncode:
        pytest.skip(f"no network namespace can be made here: {tried.stderr.decode().strip()}")
    return (*begin, "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def test_what_no_rank_uses_sends_no_bytes(make_ranks, alone) -> None:
    """Two ranks: a sum of n bytes sends 2 n. The first step predicts that everything is used."""
    everything = [list(range(6))] * 2
    chosen = [everything, [[0], [0]], [[], []], [[1, 2], [2, 4]], [[5], []], everything]
    num_used = [6, 1, 0, 3, 1, 6]
    ranks = make_ranks("one node")
    ranks.within = alone
    cases = [
        (
            "varying_cases.py:bytes_of_steps",
            {"preset": preset, "options": options, "chosen": chosen, "folder": str(ranks.folder)},
        )
        for preset, options in (("ddp", {}), ("all_reduce_per_variable", {}), ("bytescheduler", {}))
    ]
    for counts in ranks.run(cases)[0]:
        for number, sent in zip(num_used, counts, strict=True):
            gradients = 2 * (TRUNK_BYTES + number * EXPERT_BYTES)
            assert gradients <= sent <= 1.02 * gradients + REST_BYTES
