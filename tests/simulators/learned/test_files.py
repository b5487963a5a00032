"""Saved simulators are read back unchanged, and damaged, foreign or hostile files are refused by name."""

from __future__ import annotations

import functools
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autosync.errors import DocumentError
from autosync.simulators.features.context import CONTEXT
from autosync.simulators.features.reader import feature_names
from autosync.simulators.learned.boosted import Boosted, Boosting, boost
from autosync.simulators.learned.files import MANIFEST_FILE, TrainedOn, is_saved
from autosync.simulators.learned.linear import NAMES, LinearModel, load_line, save_line
from autosync.simulators.learned.losses import Targets
from autosync.simulators.learned.ranker import load_ranker, save_ranker
from autosync.simulators.learned.sequence import WEIGHTS_FILE, load_sequencer, save_sequencer, train
from autosync.simulators.learned.trials import TrialGroup
from autosync.simulators.learned.variables import VARIABLE_NAMES, SequenceRows

_ABOUT = TrainedOn(num_records=40, models=("m",), clusters=("c",), fingerprint="0" * 16)


def _targets(count: int) -> Targets:
    log_seconds = np.linspace(-1.0, 1.0, count)
    return Targets(
        log_seconds=log_seconds,
        log_low=log_seconds - 0.01,
        log_high=log_seconds + 0.01,
        complexity=np.ones(count),
        group=np.zeros(count, dtype=np.intp),
        weight=np.ones(count),
    )


@functools.cache
def _values(width: int) -> Any:
    return np.random.default_rng(0).normal(size=(40, width))


@functools.cache
def _ranker() -> Boosted:
    how = Boosting(seeds=1, rounds=3, depth=2)
    return boost(_values(len(feature_names())), np.zeros(40), _targets(40), np.arange(40), how)


@pytest.fixture
def ranker_folder(tmp_path: Path) -> Path:
    """A saved ranker."""
    folder = tmp_path / "ranker"
    save_ranker(folder, _ranker(), trained_on=_ABOUT, accuracy={"pair_ranking": 0.9})
    return folder


@pytest.fixture
def sequence_folder(tmp_path: Path) -> Path:
    """A saved network."""
    folder = tmp_path / "sequence"
    values = _values(5 * (len(VARIABLE_NAMES) + len(CONTEXT))).reshape(40, 5, -1)
    rows = SequenceRows(values=values, bound=np.ones(40), complexity=np.ones(40))
    network = train([TrialGroup(rows=rows, targets=_targets(40), model="m", cluster="c")], passes=2)
    save_sequencer(folder, network, trained_on=_ABOUT, accuracy={})
    return folder


def test_a_ranker_comes_back(ranker_folder: Path) -> None:
    assert is_saved(ranker_folder)
    loaded = load_ranker(ranker_folder)
    values = _values(len(feature_names()))
    for one, other in zip(loaded.correct(values), _ranker().correct(values), strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    manifest = json.loads((ranker_folder / MANIFEST_FILE).read_text())
    assert manifest["schema"] == "autosync.ranker/1"
    assert manifest["trained_on"]["num_records"] == 40
    assert manifest["accuracy"] == {"pair_ranking": 0.9}


def test_a_line_comes_back(tmp_path: Path) -> None:
    line = LinearModel(coefficients=np.linspace(-1, 1, len(NAMES)), offset=0.5, slope=2.0)
    save_line(tmp_path / "line", line, trained_on=_ABOUT, accuracy={})
    loaded = load_line(tmp_path / "line")
    assert (loaded.coefficients == line.coefficients).all()
    assert (loaded.offset, loaded.slope) == (0.5, 2.0)


def test_a_network_comes_back(sequence_folder: Path) -> None:
    loaded = load_sequencer(sequence_folder)
    values = _values(5 * (len(VARIABLE_NAMES) + len(CONTEXT))).reshape(40, 5, -1)
    rows = SequenceRows(values=values, bound=np.ones(40), complexity=np.ones(40))
    assert np.isfinite(loaded.predict(rows)[0]).all()
    assert np.std(loaded.predict(rows)[0]) > 0


def _changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / MANIFEST_FILE
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda fields: fields.update(schema="autosync.ranker/2"), "newer than this autosync"),
        (lambda fields: fields.update(schema="autosync.strategy/1"), "no ranker file"),
        (lambda fields: fields.update(what="linear"), "for linear, not for learned"),
        (lambda fields: fields.update(what="pickle"), "what"),
        (lambda fields: fields.update(code="import os"), "code"),
        (lambda fields: fields.update(features=fields["features"][::-1]), "other features"),
        (lambda fields: fields["numbers"].pop("share"), "numbers.share has 0 entries"),
        (lambda fields: fields["numbers"].update(share=[2.0]), "a share of 0 to 1"),
        (lambda fields: fields["numbers"].update(noise=[1e400]), "number"),
        (lambda fields: fields.update(rehearsal=[1.0, 2.0]), "train it again"),
        (lambda fields: fields["files"].update({"../member.json": "0" * 64}), "no file of this folder"),
        (lambda fields: fields["files"].update({"/etc/passwd": "0" * 64}), "no file of this folder"),
        (lambda fields: fields["files"].update({"missing.json": "0" * 64}), "missing.json"),
        (lambda fields: fields["files"].update({"member-00.json": "0" * 64}), "not the one that was saved"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(
    ranker_folder: Path, change: Callable[[dict[str, Any]], None], told: str
) -> None:
    _changed(ranker_folder, change)
    with pytest.raises(DocumentError, match=told) as caught:
        load_ranker(ranker_folder)
    assert str(ranker_folder) in str(caught.value)


def test_a_member_that_was_changed_is_refused(ranker_folder: Path) -> None:
    member = ranker_folder / "member-00.json"
    member.write_text(member.read_text().replace("0", "1", 1))
    with pytest.raises(DocumentError, match=r"member-00\.json.*not the one that was saved"):
        load_ranker(ranker_folder)


def _signed(folder: Path, name: str, content: bytes) -> None:
    """Put another file in its place, and its hash into the manifest, as who means harm would."""
    import hashlib

    (folder / name).write_bytes(content)
    _changed(folder, lambda fields: fields["files"].update({name: hashlib.sha256(content).hexdigest()}))


class _Harm:
    """Would leave a file behind if it were ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(("fixture", "name"), [("ranker_folder", "member-00.json"), ("sequence_folder", WEIGHTS_FILE)])
def test_nothing_is_unpickled(request: pytest.FixtureRequest, tmp_path: Path, fixture: str, name: str) -> None:
    folder = request.getfixturevalue(fixture)
    _signed(folder, name, pickle.dumps(_Harm(tmp_path / "harm")))
    with pytest.raises(DocumentError, match=name.replace(".", r"\.")):
        (load_ranker if fixture == "ranker_folder" else load_sequencer)(folder)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("content", [b"", b"null", b"[" * 100_000, b"\xff\xfe", b'{"version": [3, 2, 0]}', b"1e999"])
def test_what_is_no_model_is_refused_though_it_is_signed(ranker_folder: Path, content: bytes) -> None:
    _signed(ranker_folder, "member-00.json", content)
    with pytest.raises(DocumentError, match=r"member-00\.json"):
        load_ranker(ranker_folder)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_bytes_that_flip_are_noticed(
    ranker_folder: Path, sequence_folder: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder, load = data.draw(st.sampled_from([(ranker_folder, load_ranker), (sequence_folder, load_sequencer)]))
    copy = tmp_path_factory.mktemp("flipped") / "copy"
    shutil.copytree(folder, copy)
    path = data.draw(st.sampled_from(sorted(copy.iterdir())))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    is_signed = path.name != MANIFEST_FILE and data.draw(st.booleans())
    if not is_signed:
        path.write_bytes(bytes(content))
    else:
        _signed(copy, path.name, bytes(content))
    refusal = ""
    try:
        load(copy)
    except DocumentError as error:
        refusal = str(error)
    assert not refusal or str(copy) in refusal
    # In a manifest some bytes mean nothing, such as blanks; and whoever signs a file may write what it may say.
    assert refusal or is_signed or path.name == MANIFEST_FILE


def test_weights_of_another_network_are_refused(sequence_folder: Path) -> None:
    import torch
    from safetensors.torch import save

    _signed(sequence_folder, WEIGHTS_FILE, save({"reads.weight": torch.zeros(2, 2)}))
    with pytest.raises(DocumentError, match="other tensors"):
        load_sequencer(sequence_folder)
    from autosync.simulators.learned.network import Network

    weights = {name: tensor.clone() for name, tensor in Network().state_dict().items()}
    next(iter(weights.values()))[0] = float("nan")
    _signed(sequence_folder, WEIGHTS_FILE, save(weights))
    with pytest.raises(DocumentError, match="holds no weights"):
        load_sequencer(sequence_folder)
