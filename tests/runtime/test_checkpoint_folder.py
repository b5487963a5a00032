"""The folder of a checkpoint: whole whenever a process is killed, and refused where anything in it was changed."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from autosync import jsonio
from autosync.errors import DocumentError, OperationError
from autosync.runtime.checkpoints import folder
from autosync.runtime.checkpoints.collected import Collected, Sent
from autosync.runtime.checkpoints.rank_state import RankState, pack, unpack
from autosync.runtime.checkpoints.state_kinds import first_difference
from autosync.runtime.memory.kept_state import Held, Place

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def killed() -> ModuleType:
    spec = importlib.util.spec_from_file_location("checkpoint_killed", HERE / "checkpoint_killed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_process_that_is_killed_at_any_line_leaves_one_checkpoint_whole(tmp_path: Path) -> None:
    path = tmp_path / "engine"
    answer = subprocess.run(
        (sys.executable, HERE / "checkpoint_killed.py", path),
        env={**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr.decode()
    found = json.loads(answer.stdout)
    steps = found["steps"]
    # Some were killed before the new one was valid, and some after.
    assert len(steps) > 60
    assert 0 < sum(step == line + 1 for line, step in enumerate(steps)) < len(steps)
    for line, step in enumerate(steps):
        assert step in {line + 1, steps[line - 1] if line else 0}
    # The last one was not killed, and has removed what all others had left.
    assert steps[-1] == len(steps)
    assert len(found["left"]) == 2, found["left"]
    assert found["left"][1] == "engine_state.json"


@pytest.fixture
def path(tmp_path: Path, killed: ModuleType) -> Path:
    made = tmp_path / "engine"
    killed.save(made, 3)
    return made


def test_a_document_in_which_any_bit_is_flipped_is_refused(path: Path) -> None:
    document = path / folder.DOCUMENT
    content = document.read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        document.write_bytes(changed)
        with pytest.raises(DocumentError, match=folder.DOCUMENT):
            folder.read(path)
    for size in range(0, len(content) - 2, 7):
        document.write_bytes(content[:size])
        with pytest.raises(DocumentError, match=folder.DOCUMENT):
            folder.read(path)


def test_a_file_in_which_any_bit_is_flipped_is_refused(path: Path) -> None:
    saved = folder.read(path)
    file = folder.path_of(path, saved, 1)
    content = file.read_bytes()
    for position in range(0, len(content), 3):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        file.write_bytes(changed)
        with pytest.raises(OperationError, match=r"worker-1.safetensors is not as it was written"):
            folder.check_file(path, saved, 1)
    file.write_bytes(content[:-1])
    with pytest.raises(OperationError, match=f"has {len(content) - 1} bytes, and had {len(content)}"):
        folder.check_file(path, saved, 1)
    file.unlink()
    with pytest.raises(OperationError, match=r"worker-1.safetensors cannot be read: No such file"):
        folder.check_file(path, saved, 1)


def _write(path: Path, **changed: Any) -> None:
    """A document with other fields, and a checksum that is right."""
    fields = json.loads((path / folder.DOCUMENT).read_text())
    fields |= changed
    rest = {key: value for key, value in fields.items() if key not in ("schema", "checksum")}
    fields["checksum"] = jsonio.content_hash(rest, length=64)
    (path / folder.DOCUMENT).write_text(json.dumps(fields))


@pytest.mark.parametrize(
    "name",
    ["../worker-0.safetensors", "/etc/passwd", "worker-1.safetensors", "worker-0.safetensors/../../x", "", "\x00"],
)
def test_a_file_of_another_name_is_refused(name: str, path: Path) -> None:
    files = json.loads((path / folder.DOCUMENT).read_text())["files"]
    _write(path)
    folder.read(path)
    _write(path, files=[{**files[0], "name": name}, files[1]])
    with pytest.raises(DocumentError, match="engine_state"):
        folder.read(path)
    _write(path, files=files, folder=f"../{name}")
    with pytest.raises(DocumentError, match="is no name that autosync gives"):
        folder.read(path)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("autosync.engine_state/2", "version 2 of autosync.engine_state is newer than this autosync"),
        ("autosync.bundle/1", "this is no engine_state file: its schema is 'autosync.bundle/1'"),
        (None, "this is no engine_state file|schema"),
    ],
)
def test_another_kind_or_a_newer_version_is_refused_by_name(schema: Any, words: str, path: Path) -> None:
    _write(path, schema=schema)
    with pytest.raises(DocumentError, match=words):
        folder.read(path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"engine_state.json.*cannot be read: No such file"):
        folder.read(tmp_path)


def test_files_that_others_have_not_written_here_are_no_checkpoint(path: Path, killed: ModuleType) -> None:
    """Folders of the same name on several hosts: the first worker sees its own file alone."""
    version = folder.begin(path)
    facts = folder.write_file(path, version, 0, b"1234")
    elsewhere = dataclasses.replace(facts, name=folder.file_name(1))
    with pytest.raises(OperationError, match=r"worker-1.safetensors is not there.* all workers share"):
        folder.commit(path, killed.saved(version, 4, [facts, elsewhere]))
    assert killed.found(path) == 3


def test_what_is_valid_is_not_dropped(path: Path, killed: ModuleType) -> None:
    """Another worker may be gone when the first one has made a version valid and wants to tell."""
    folder.drop(path, folder.read(path).folder)
    assert killed.found(path) == 3
    version = folder.begin(path)
    folder.write_file(path, version, 0, b"1234")
    folder.drop(path, version)
    assert not (path / version).exists()
    assert killed.found(path) == 3


def test_a_disk_without_room_is_named_and_the_checkpoint_stays(
    killed: ModuleType, mount_disk: Callable[[int], Path], fill_disk: Callable[[Path], Path]
) -> None:
    path = mount_disk(1024) / "engine"
    killed.save(path, 3)
    version = folder.begin(path)
    with pytest.raises(OSError, match="No space left on device") as raised:
        folder.write_file(path, version, 1, bytes(2**21))
    assert raised.value.filename == str(path / version / "worker-1.safetensors")
    folder.drop(path, version)
    assert killed.found(path) == 3
    # The room that is left ends between the workers' files and the document that would make them valid.
    version = folder.begin(path)
    files = [folder.write_file(path, version, rank, b"1234") for rank in range(killed.NUM_WORKERS)]
    filler = fill_disk(path.parent)
    with pytest.raises(OSError, match="No space left on device") as raised:
        folder.commit(path, killed.saved(version, 4, files))
    assert raised.value.filename == str(path / folder.DOCUMENT)
    folder.drop(path, version)
    assert killed.found(path) == 3
    filler.unlink()
    killed.save(path, 5)
    assert killed.found(path) == 5
    assert len(list(path.iterdir())) == 2


def test_a_checkpoint_that_does_not_count_the_optimizers_steps_is_read(path: Path) -> None:
    assert "optimizer_steps" not in json.loads((path / folder.DOCUMENT).read_text())
    assert folder.read(path).num_steps == 3
    _write(path, optimizer_steps=2)
    assert (folder.read(path).step, folder.read(path).num_steps) == (3, 2)
    _write(path, optimizer_steps=-1)
    with pytest.raises(DocumentError, match="engine_state"):
        folder.read(path)


def test_the_users_own_files_stay(path: Path, killed: ModuleType) -> None:
    for name in ("model.pt", "000001-notours", ".autosync-mine"):
        (path / name).write_text("")
    killed.save(path, 4)
    assert {"model.pt", "000001-notours", ".autosync-mine"} < {entry.name for entry in path.iterdir()}


def test_a_state_is_the_same_after_packing() -> None:
    state = RankState(elements=[Held("residual", Place("a/b.c", 1, 2, 4, 1, 3), torch.tensor([1.0, float("nan")]))])
    state.others["right", "w", "0:2 of axis 0"] = torch.ones(2, 3, dtype=torch.bfloat16)
    value = {"lr": 0.1, "betas": (0.9, 0.99), "x": [None, True, torch.tensor(3)], "é": {"y": "z"}}
    state.add_words("options", "0", value)
    again = unpack(pack(state))
    assert pack(again) == pack(state)
    collected = Collected([Sent(safetensors.torch.load(pack(state)))])
    found = collected.words("options", "0")
    assert found["x"][2].equal(torch.tensor(3))
    assert str(found) == str(value)
    assert collected.other(("right", "w", "0:2 of axis 0")).equal(torch.ones(2, 3, dtype=torch.bfloat16))


def test_what_each_worker_had_is_its_own_again_or_the_mean() -> None:
    """Residuals: with another number of workers the mean of what is pending stays the same."""
    place, factors = Place.whole("w", (3,)), (1, 2, 6)
    states = [RankState(elements=[Held("residual", place, torch.arange(3.0) * factor)]) for factor in factors]
    collected = Collected([Sent(safetensors.torch.load(pack(state))) for state in states])
    like = torch.zeros(3)
    assert collected.own("residual", "w", like, rank=1, num_ranks=3).tolist() == [0, 2, 4]
    for num_ranks in (1, 2, 4):
        assert collected.own("residual", "w", like, rank=0, num_ranks=num_ranks).tolist() == [0, 3, 6]
    with pytest.raises(OperationError, match="residual: 9 elements are there of w, which has 3"):
        collected.whole("residual", "w", like)
    with pytest.raises(OperationError, match="there is no velocity of w"):
        collected.whole("velocity", "w", like)


def test_what_is_no_data_is_refused_by_name() -> None:
    with pytest.raises(OperationError, match="options 0 callback is a function, which cannot be saved as data"):
        RankState().add_words("options", "0", {"callback": lambda: None})


NAMES = st.one_of(
    st.text(max_size=20),
    st.lists(st.one_of(st.text(max_size=4), st.integers(-3, 9), st.booleans(), st.none()), max_size=8).map(json.dumps),
    st.tuples(st.sampled_from(["residual", "optimizer x"]), st.just("w"), *[st.integers(-2, 5)] * 5).map(json.dumps),
    st.just('["words"]'),
)
TENSORS = st.one_of(
    st.integers(0, 6).map(torch.ones),
    st.sampled_from([torch.zeros(2, 2), torch.tensor(1), torch.zeros(3, dtype=torch.int8)]),
    st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(["options", "optimizer", "0", "w", "list", "tensor", "dict"]),
                inner,
                max_size=3,
            ),
        ),
        max_leaves=8,
    ).map(lambda value: torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)),
)


@given(st.dictionaries(NAMES, TENSORS, max_size=4))
def test_tensors_that_are_none_of_ours_are_errors_by_name(tensors: dict[str, torch.Tensor]) -> None:
    like = torch.zeros(4)
    with contextlib.suppress(OperationError):
        collected = Collected([Sent(tensors), Sent(tensors)])
        for what in ("residual", "optimizer x"):
            collected.mean(what, "w", like)
        collected.entry("w", like)
        collected.words("options", "0")
        collected.other(("right", "w"))


def test_the_first_variable_that_is_kept_in_another_way_is_named() -> None:
    assert first_difference({"a": [], "b": ["staleness 2"]}, {"a": [], "b": ["staleness 2"]}) is None
    assert first_difference({"a": [], "b": ["staleness 2"]}, {"b": ["codec sign ()", "staleness 3"]}) == (
        "b was trained with staleness 2; here it is trained with codec sign () and staleness 3"
    )
    assert first_difference({"a": ["x"]}, {}) == "a was trained with x; here it is trained with nothing of the kind"
