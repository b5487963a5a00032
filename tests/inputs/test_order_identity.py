"""An epoch goes on only in the order that it has begun in, and ranks with another order are named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autosync
from autosync.errors import InputError
from autosync.inputs.loader import InputLoader
from autosync.inputs.tar_shards import TarShards
from autosync.specs.input_settings import InputSettings
from tests.helpers.forks import Forked
from tests.helpers.shards import serving, write_shards

LIMIT_SECONDS = 100.0
NUM_RANKS = 3


def _loader(urls: list[Any]) -> InputLoader:
    return autosync.loader(TarShards(urls), InputSettings(num_workers=0), batch_size=2)


def test_a_state_is_of_the_same_shards_in_the_same_order(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [4, 4])
    state = _loader(list(paths)).state_dict()
    with pytest.raises(InputError, match=r"of another order.*its shards in the same order"):
        _loader(paths[::-1]).load_state_dict(state)
    # A dataset may move.
    (tmp_path / "moved").mkdir()
    _loader([shutil.copy(path, tmp_path / "moved") for path in paths]).load_state_dict(state)
    with serving(tmp_path) as server:
        _loader([f"{server.url}/{path.name}?signed=1" for path in paths]).load_state_dict(state)


def test_a_state_without_names_of_shards_is_read(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [4, 4])
    state = _loader(list(paths)).state_dict()
    older = {**state, "order": {name: one for name, one in state["order"].items() if name != "shard_names"}}
    assert older != state
    _loader(paths[::-1]).load_state_dict(older)
    with pytest.raises(InputError, match="of another order"):
        _loader(list(paths)).load_state_dict({**older, "order": {**older["order"], "seed": 1}})
    with pytest.raises(InputError, match="of another order: None"):
        _loader(list(paths)).load_state_dict({**older, "order": None})


def test_a_rank_with_another_order_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, [4, 4, 4])
    main = Path(__file__).parent / "order_main.py"
    started = [
        Forked(
            (sys.executable, "-P", main, str(rank), str(NUM_RANKS), str(tmp_path / "store"), str(tmp_path)),
            stdout=subprocess.PIPE,
        )
        for rank in range(NUM_RANKS)
    ]
    try:
        outputs = [one.communicate(timeout=LIMIT_SECONDS)[0] for one in started]
        assert [one.returncode for one in started] == [0] * NUM_RANKS
    finally:
        for one in started:
            one.kill()
            one.wait()
    *others, last = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert others == [[""] * 6] * 2
    assert "rank 2 orders examples otherwise than rank 0: its shards have other names, or another order" in last[0]
    assert "batch_size is 3 and not 2" in last[1]
    assert "num_examples is 8 and not 12" in last[2]
    assert last[3:] == [""] * 3
