"""A host that is served worse is named on all ranks, from their own reads."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.inputs.host_rates import NUM_WINDOWS, window_rates
from tests.helpers.forks import Forked
from tests.helpers.shards import serving, write_shard

LIMIT_SECONDS = 100.0
NUM_RANKS = 4


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(1e-3, 10)), max_size=60))
def test_windows_have_all_reads(reads: list[tuple[int, float]]) -> None:
    rates = window_rates(reads)
    kept = [one for one in reads if one[0]]
    assert len(rates) == min(NUM_WINDOWS, len(kept))
    if kept:
        each = [size / seconds for size, seconds in kept]
        assert min(each) * 0.999 <= min(rates) <= max(rates) <= max(each) * 1.001


def test_equal_reads_have_equal_rates() -> None:
    assert window_rates([(100, 0.5)] * 25) == [200.0] * NUM_WINDOWS
    assert window_rates([(0, 0.0), (100, 0.5)]) == [200.0]
    assert window_rates([]) == []


def test_a_host_that_is_served_worse_is_named_on_all_ranks(tmp_path: Path) -> None:
    write_shard(tmp_path / "all.tar", range(160))
    with serving(tmp_path) as fast, serving(tmp_path) as slow:
        slow.pause_seconds = 0.08
        found = _run(tmp_path, [fast.url, fast.url, slow.url, fast.url])
    for one in found:
        assert one["num_examples"] == 40
        assert [host for host, *_ in one["unfair"]] == ["node-2"]
        assert one["unfair"][0][1] < 0.7
        assert one["unfair"][0][2].startswith("node-2 is served at ")
        assert "rank 0 on node-0 has read in 0 steps through autosync" in one["too_early"]
        assert one["rates"]["node-2"] < min(rate for host, rate in one["rates"].items() if host != "node-2")
        assert one["shares"] == one["state"] == found[0]["shares"]
        # The second epoch is dealt by rate: as many steps on all ranks, and each example once.
        assert [len(batch) for batch in one["batches"][:3]] == [one["shares"][found.index(one)]] * 3
        assert len(one["batches"]) == 10
    shares = found[0]["shares"]
    assert sum(shares) == 16
    assert shares[2] == min(shares) < 4
    assert sorted(number for one in found for batch in one["batches"] for number in batch) == list(range(160))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_unfair_host_is_named_in_twenty_of_twenty_runs_and_fair_hosts_in_none(tmp_path: Path) -> None:
    """Real ranks and servers each time, with the host that is served at a third in each place in turn."""
    write_shard(tmp_path / "all.tar", range(640))
    for run in range(20):
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(serving(tmp_path)) for _ in range(NUM_RANKS)]
            for server in servers:
                server.pause_seconds = 0.02
            (tmp_path / f"fair-{run}").mkdir()
            fair = _run(tmp_path / f"fair-{run}", [server.url for server in servers])
            assert [one["unfair"] for one in fair] == [[]] * NUM_RANKS, run
            assert [one["shares"] for one in fair] == [[]] * NUM_RANKS, run
            servers[run % NUM_RANKS].pause_seconds = 0.06
            (tmp_path / f"unfair-{run}").mkdir()
            found = _run(tmp_path / f"unfair-{run}", [server.url for server in servers])
            assert [[host for host, *_ in one["unfair"]] for one in found] == [[f"node-{run % NUM_RANKS}"]] * NUM_RANKS


def _run(folder: Path, servers: list[str]) -> list[dict[str, Any]]:
    main = Path(__file__).parent / "hosts_main.py"
    started = [
        Forked(
            (sys.executable, "-P", main, str(rank), str(NUM_RANKS), str(folder / "store"), f"{server}/all.tar"),
            env={**os.environ, "AUTOSYNC_NODE": f"node-{rank}"},
            stdout=subprocess.PIPE,
        )
        for rank, server in enumerate(servers)
    ]
    try:
        outputs = [one.communicate(timeout=LIMIT_SECONDS)[0] for one in started]
        assert [one.returncode for one in started] == [0] * NUM_RANKS
        return [json.loads(output.splitlines()[-1]) for output in outputs]
    finally:
        for one in started:
            one.kill()
            one.wait()
