"""Damaged folders of learned simulators: boosted trees, lines and sequences, or foreign models of XGBoost."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autosync.simulators.features.reader import feature_names
from autosync.simulators.learned.files import MANIFEST_FILE, TrainedOn
from autosync.simulators.learned.linear import NAMES, LinearModel, save_line
from autosync.simulators.learned.network import Network
from autosync.simulators.learned.sequence import Sequencer, save_sequencer
from autosync.simulators.learned.simulators import shipped_folder
from benchmarks.fuzz.commands import command
from benchmarks.fuzz.kinds import Attempt, Maker
from benchmarks.fuzz.studies import PICKLE
from tests.helpers.damaged_files import damaged, damaged_tensors, hostile_json, lead_astray

_TRAINED_ON = TrainedOn(num_records=2, models=("m",), clusters=("c",), fingerprint="0" * 16)
_MEMBERS = 2


def _write_originals(folder: Path) -> None:
    """Write a small folder for each method. The shipped ranker is reduced to a few members to save time."""
    learned = folder / "learned"
    shutil.copytree(shipped_folder(), learned)
    manifest = json.loads((learned / MANIFEST_FILE).read_bytes())
    for name in sorted(manifest["files"])[_MEMBERS:]:
        del manifest["files"][name]
        (learned / name).unlink()
    for name in manifest["files"]:
        fields = json.loads((learned / name).read_bytes())
        _first_trees(fields, 3)
        (learned / name).write_text(json.dumps(fields), encoding="utf-8")
    (learned / MANIFEST_FILE).write_text(json.dumps(manifest), encoding="utf-8")
    _sign(learned, random.Random(0))
    line = LinearModel(coefficients=np.ones(len(NAMES)), offset=0.5, slope=1.0)
    save_line(folder / "linear", line, trained_on=_TRAINED_ON, accuracy={"pair_ranking": 0.5})
    sequencer = Sequencer(weights=Network().state_dict(), offset=0.0)
    save_sequencer(folder / "sequence", sequencer, trained_on=_TRAINED_ON, accuracy={})
    (folder / "foreign.json").write_bytes(_foreign("json"))
    (folder / "foreign.ubj").write_bytes(_foreign("ubj"))


def _first_trees(fields: dict[str, Any], count: int) -> None:
    model = fields["learner"]["gradient_booster"]["model"]
    model["trees"] = model["trees"][:count]


def _foreign(form: str) -> bytes:
    """Return a model that XGBoost itself has trained and written, with as many features as ours."""
    import xgboost

    values = np.random.default_rng(0).normal(size=(50, len(feature_names())))
    matrix = xgboost.DMatrix(values, label=values[:, 0], nthread=1)
    booster = xgboost.train({"max_depth": 2, "nthread": 1, "booster": "gbtree"}, matrix, 3)
    return bytes(booster.save_raw(raw_format=form))


def _sign(folder: Path, rng: random.Random) -> None:
    """Write the files' current hashes into the manifest, as an attacker could."""
    path = folder / MANIFEST_FILE
    if not path.is_file() or path.is_symlink() or path.stat().st_size > 2**25:
        return
    try:
        manifest = json.loads(path.read_bytes())
        names = list(manifest["files"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return
    for name in names:
        file = folder / name
        if file.is_file() and not file.is_symlink() and file.stat().st_size < 2**25:
            manifest["files"][name] = hashlib.sha256(file.read_bytes()).hexdigest()
    if rng.random() < 0.97:
        path.write_text(json.dumps(manifest), encoding="utf-8")


def maker(_kind: str, originals: Path) -> Maker:
    """Return a maker of damaged folders of all three methods, most of them with valid hashes."""
    _write_originals(originals)
    foreign = [(originals / f"foreign.{form}").read_bytes() for form in ("json", "ubj")]

    def make(rng: random.Random, box: Path) -> Attempt:
        method = rng.choice(("learned", "learned", "learned", "linear", "sequence"))
        folder = box / "ranker"
        shutil.copytree(originals / method, folder)
        files = sorted(folder.iterdir())
        _damage_one(rng.choice(files), foreign, box.parent / "victim", rng)
        if rng.random() < 0.9:
            _sign(folder, rng)
        by = rng.choice((method, method, method, "learned", "linear", "sequence"))
        arguments = ["simulate", "ddp", "bytescheduler", "--model", "ncf", "--cluster", "2-hosts", "--simulator", by]
        return lambda: command([*arguments, "--prior", str(folder), "--json"])

    return make


def _damage_one(file: Path, foreign: Sequence[bytes], outside: Path, rng: random.Random) -> None:
    raw = file.read_bytes()
    match rng.randrange(8):
        case 0:
            lead_astray(file, outside, rng)
        case 1:
            file.write_bytes(damaged(raw, rng))
        case 2:
            file.write_bytes(rng.choice((*foreign, PICKLE, b"", b"null", b"[" * 100_000, damaged(foreign[1], rng))))
        case _ if file.suffix == ".safetensors":
            file.write_bytes(damaged_tensors(raw, rng))
        case 3 if file.name != MANIFEST_FILE:
            file.write_bytes(json.dumps(_other_tree(json.loads(raw), rng)).encode())
        case _:
            file.write_bytes(hostile_json(json.loads(raw), rng))


def _other_tree(fields: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return the fields with one number of one tree changed to a value that could mislead XGBoost."""
    tree = rng.choice(fields["learner"]["gradient_booster"]["model"]["trees"])
    name = rng.choice(("left_children", "right_children", "split_indices", "split_conditions", "default_left"))
    column = tree[name]
    column[rng.randrange(len(column))] = rng.choice((-2, -1, 0, 1, len(column), 2**31, -(2**31), 2**63, 1e30, 0.5))
    return fields
