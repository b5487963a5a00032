"""The watch sees the actions of DDP on two real ranks, and changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forks import Forked

LIMIT_SECONDS = 120.0


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What each rank says of its two trainings."""
    store = tmp_path_factory.mktemp("watch") / "store"
    main = Path(__file__).parent / "watched_main.py"
    started = [Forked((sys.executable, "-P", main, str(rank), str(store)), stdout=subprocess.PIPE) for rank in range(2)]
    try:
        outputs = [one.communicate(timeout=LIMIT_SECONDS)[0] for one in started]
        assert [one.returncode for one in started] == [0, 0]
        yield [json.loads(output.splitlines()[-1]) for output in outputs]
    finally:
        for one in started:
            one.kill()
            one.wait()


def test_training_is_the_same_with_the_watch(told: list[dict[str, Any]]) -> None:
    assert all(one["equal"] for one in told)
    assert all(one["put_back"] for one in told)


def test_steps_passes_and_messages_are_seen(told: list[dict[str, Any]]) -> None:
    for one in told:
        assert one["stepped"] == [1, 2, 3, 4, 5, 6]
        assert one["passes"] == [2] * 6
        assert all(without == 0 and messages >= 2 for without, messages in one["synchronised"])
        assert one["gradients"] == [5] * 6


def test_waits_for_the_data_loader_are_seen(told: list[dict[str, Any]]) -> None:
    assert all(one["loader"] for one in told)
    assert [one["num_workers"] for one in told] == [0, 0]


def test_settings_and_variables_are_seen(told: list[dict[str, Any]]) -> None:
    for one in told:
        assert one["find_unused_parameters"]
        assert one["num_unused"] == 2
        assert one["searched"]
        assert one["buffers"]
        assert one["variables"]["table.weight"] == [50 * 8 * 4, 0]
        # 16 rows of inputs and outputs are more than the weight itself.
        assert one["variables"]["used.weight"] == [8 * 4 * 4, 8 * 4 * 4]
        assert "unused.weight" not in one["variables"]
