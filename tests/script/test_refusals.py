"""Uses of DDP that a bundle cannot serve are refused by name; all others give the same result as stock DDP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from autosync.strategy.bundle import load_bundle

SCRIPTS = Path(__file__).parent / "scripts"
PAGE = Path(__file__).parents[2] / "docs" / "script.md"


@pytest.mark.parametrize(
    ("what", "way", "words"),
    [
        ("neither", "ddp", "has ended, and the bundle was not used"),
        ("unwrapped", "ddp", "has ended, and the bundle was not used"),
        (
            "plain",
            "fsdp",
            "under this bundle the optimizer's state of 0.bias and 3 more is kept at a server or in shards",
        ),
        ("plain", "ps_load_balanced", "is kept at a server or in shards"),
        ("other_model", "ddp", "the bundle was not made for this Linear: the model has no parameter"),
        ("ignores", "ddp", "_ddp_params_and_buffers_to_ignore names 0.weight"),
        ("mixed_precision", "ddp", "DistributedDataParallel(mixed_precision=…): "),
        ("delays", "ddp", "delay_all_reduce_named_params: "),
        ("device_ids", "ddp", "device_ids and output_device arguments only work with"),
        ("hook", "ddp", "DistributedDataParallel.register_comm_hook: the bundle's strategy decides"),
        ("joins", "ddp", "DistributedDataParallel.join_hook: a rank that has no more batches"),
        ("looks_into_reducer", "ddp", "DistributedDataParallel.reducer has no _get_backward_stats"),
        ("two_wrappers", "ddp", "another DistributedDataParallel was put around the same Sequential"),
        ("miscounts", "ddp", "the script calls init_process_group as rank 0 of 1, and it was started as rank"),
        ("no_optimizer", "bytescheduler", "no optimizer holds parameters of this Sequential at its first forward pass"),
    ],
)
def test_a_script_is_refused_by_name(ranks: Any, what: str, way: str, words: str) -> None:
    found = ranks.run("does", way, key=f"{what}-{way}", arguments=(what,))
    assert found.codes == (1, 1), found.logs
    assert all(words in log for log in found.logs), found.logs


def test_a_rank_with_another_model_ends_all_ranks(ranks: Any) -> None:
    words = "the bundle was not made for this Sequential: the model has no parameter 0.weight"
    found = ranks.run("does", "ddp", key="one-rank", arguments=("rank_with_other_names",))
    assert found.codes == (1, 1), found.logs
    assert f"rank 1: {words}" in found.logs[0]
    assert words in found.logs[1]


@pytest.mark.parametrize(
    ("what", "way"),
    [
        ("random_numbers", "bytescheduler"),
        ("copies", "bytescheduler"),
        ("closure", "ddp"),
        ("closure", "bytescheduler"),
        ("averaging_hook", "bytescheduler"),
        ("distils", "bytescheduler"),
    ],
)
def test_what_is_not_refused_is_as_under_stock_ddp(ranks: Any, what: str, way: str) -> None:
    stock = ranks.run("does", None, key=f"{what}-stock", arguments=(what,))
    ours = ranks.run("does", way, key=what, arguments=(what,))
    assert stock.codes == ours.codes == (0, 0), (*stock.logs, *ours.logs)
    for expected, found in zip(stock.saved, ours.saved, strict=True):
        for key in expected:
            torch.testing.assert_close(found[key], expected[key], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("what", ["late_optimizer", "drops_gradients"])
def test_averaging_follows_what_a_script_does_before_its_step(ranks: Any, what: str) -> None:
    ours = ranks.run("does", "local_sgd", key=f"{what}-averaged", arguments=(what,))
    assert ours.codes == (0, 0), ours.logs


def test_averaging_refuses_a_second_pass_with_the_reason(ranks: Any) -> None:
    found = ranks.run("does", "local_sgd", key="adds-averaged", arguments=("adds_gradients",))
    assert found.codes == (1, 1), found.logs
    assert all("the engine averages parameters after each step of the model's optimizers" in log for log in found.logs)


def test_a_checkpoint_is_loaded_under_stock_ddp(ranks: Any) -> None:
    ours = ranks.run("resumes", "bytescheduler", key="begun")
    stock = ranks.run("resumes", None, key="begun-stock")
    assert ours.codes == stock.codes == (0, 0), (*ours.logs, *stock.logs)
    folder = ranks.folder
    after = [
        ranks.run("resumes", None, key=f"after-{one}", arguments=(str(folder / f"{one}-checkpoint.pt"),))
        for one in ("begun", "begun-stock")
    ]
    assert [one.codes for one in after] == [(0, 0), (0, 0)], after[0].logs
    for found, expected in zip(after[0].saved, after[1].saved, strict=True):
        torch.testing.assert_close(found["model"], expected["model"], rtol=1e-9, atol=1e-9)


def test_all_that_is_patched_is_listed_and_put_back(write_bundle: Any, tmp_path: Path) -> None:
    from torch.nn.parallel import DistributedDataParallel

    from autosync.script.door import Door

    door = Door([load_bundle(write_bundle(tmp_path, "loads", "with_workers"))])
    names = {(owner, name) for owner, name, _ in door.patches()}
    before = {(owner, name): vars(owner)[name] for owner, name in names}
    assert (DistributedDataParallel, "register_comm_hook") in names
    with door.open():
        assert all(vars(owner)[name] is not stock for (owner, name), stock in before.items())
    assert all(vars(owner)[name] is stock for (owner, name), stock in before.items())
    listed = re.findall(r"^\| `(\w+)\.(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted((owner.__name__.rpartition(".")[2], name) for owner, name in names)


def _door(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-P", "-m", "autosync.run", *arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**{name: value for name, value in os.environ.items() if name != "AUTOSYNC_BUNDLE"}, **environment},
    )


def test_what_is_missing_is_named_without_a_traceback(tmp_path: Path) -> None:
    found = _door(str(SCRIPTS / "does.py"))
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("error: AUTOSYNC_BUNDLE is not set (")
    assert "usage" not in found.stderr
    assert _door().returncode == 2
    assert "torchrun" in _door("--help").stdout
