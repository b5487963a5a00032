"""Damaged folders of `autosync.save`, loaded by `autosync.load` in a training of one worker."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load as tensors_in
from safetensors.torch import save as bytes_of

from autosync import documents
from autosync.errors import InputError
from autosync.plan.bundling import bundled
from autosync.plan.reference.workload import Workload
from autosync.runtime.checkpoints.calls import load, save
from autosync.runtime.checkpoints.folder import DOCUMENT, KIND, VERSION, FileFacts, Saved, file_name, read
from autosync.runtime.parallelize import parallelize
from autosync.strategy.representation import Message, Strategy
from benchmarks.fuzz.kinds import Attempt, Maker
from benchmarks.fuzz.studies import PICKLE
from tests.helpers.damaged_files import damaged, damaged_tensors, hostile_json, hostile_values, json_text, lead_astray
from tests.helpers.example_plans import ALL, cluster_of, model_of
from tests.helpers.workload_model import WorkloadModel, workload_optimizer

_WORDS = '["words"]'


class _Training:
    """A training of one worker, which is restored after each input."""

    def __init__(self, folder: Path) -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        model = model_of()
        bundle = bundled(Strategy(messages=(Message(parts=ALL),)), model, cluster_of(1))
        self.model = WorkloadModel(Workload(model=model), 0)
        self.optimizer = workload_optimizer(self.model, model)
        parallelize(self.model, self.optimizer, bundle, timeout_seconds=20, hand_off=False)
        for step in range(3):
            self.optimizer.zero_grad()
            self.model(step).backward()
            self.optimizer.step()
        self.good = folder / "good"
        save(self.model, self.good)

    def go_on_from(self, path: Path) -> str:
        """Load a checkpoint, then the good one again."""
        load(self.model, path)
        load(self.model, self.good)
        return "taken"


def maker(_kind: str, originals: Path) -> Maker:
    """Return a maker of damaged checkpoints of one worker and of two, most of them with valid checksums."""
    training = _Training(originals)
    two = originals / "two"
    _write_two(training.good, two)

    def make(rng: random.Random, box: Path) -> Attempt:
        path = box / "checkpoint"
        shutil.copytree(rng.choice((training.good, two)), path)
        _damage_one(path, box.parent / "victim", rng)
        return lambda: training.go_on_from(path)

    return make


def _write_two(one: Path, two: Path) -> None:
    """Write the same checkpoint as two workers would: the second one has nothing beyond the first."""
    saved = read(one)
    content = (one / saved.folder / file_name(0)).read_bytes()
    empty = bytes_of({_WORDS: torch.frombuffer(bytearray(b"{}"), dtype=torch.uint8)})
    (two / saved.folder).mkdir(parents=True)
    files = []
    for rank, raw in enumerate((content, empty)):
        (two / saved.folder / file_name(rank)).write_bytes(raw)
        files.append(_facts(file_name(rank), raw))
    _write(two, dataclasses.asdict(dataclasses.replace(saved, num_workers=2, files=files)), random.Random(0))


def _facts(name: str, raw: bytes) -> FileFacts:
    return FileFacts(name=name, num_bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())


def _write(path: Path, fields: dict[str, Any], rng: random.Random) -> None:
    """Write the document, with a valid checksum if possible."""
    try:
        saved = documents.from_plain(fields, into=Saved)
        fields = {**fields, "checksum": saved.own_checksum()}
    except (ValueError, TypeError, RecursionError, InputError):
        pass
    text = json_text({"schema": f"autosync.{KIND}/{VERSION}", **fields}, rng)
    (path / DOCUMENT).write_bytes(text.encode("utf-8", "surrogatepass"))


def _damage_one(path: Path, outside: Path, rng: random.Random) -> None:
    saved = read(path)
    file = path / saved.folder / file_name(rng.randrange(saved.num_workers))
    raw = file.read_bytes()
    match rng.randrange(10):
        case 0:
            lead_astray(rng.choice((file, path / DOCUMENT)), outside, rng)
            return
        case 1:
            (path / DOCUMENT).write_bytes(hostile_json(json.loads((path / DOCUMENT).read_bytes()), rng))
            return
        case 2:
            (path / DOCUMENT).write_bytes(damaged((path / DOCUMENT).read_bytes(), rng))
            return
        case 3:
            fields = dataclasses.asdict(saved)
            fields[rng.choice(list(fields))] = hostile_values([1, "x", {"a": []}], rng)
            _write(path, fields, rng)
            return
        case 4:
            file.write_bytes(rng.choice((PICKLE, b"", raw + b"\0", damaged(raw, rng))))
        case 5 | 6:
            file.write_bytes(damaged_tensors(raw, rng))
        case _:
            file.write_bytes(_other_tensors(raw, rng))
    if rng.random() < 0.9:
        files = [_facts(facts.name, (path / saved.folder / facts.name).read_bytes()) for facts in saved.files]
        _write(path, dataclasses.asdict(dataclasses.replace(saved, files=files)), rng)


def _other_tensors(raw: bytes, rng: random.Random) -> bytes:
    """Return a well-formed file with other tensors under the names, other names, or other words."""
    tensors = tensors_in(raw)
    match rng.randrange(4):
        case 0:
            name = rng.choice(list(tensors))
            tensors[name] = rng.choice(
                (torch.zeros(3), torch.zeros(0), torch.zeros(2, 2), torch.full((5,), torch.nan), torch.ones(30).half())
            )
        case 1:
            name = rng.choice(list(tensors))
            parts = json.loads(name)
            parts[rng.randrange(len(parts))] = rng.choice((0, -1, 1, 10**6, 2**63, 2**70, "x", "", None, [], 1.5))
            tensors[json.dumps(parts)] = tensors.pop(name)
        case 2:
            tensors[rng.choice(("x", "[]", "[" * 5000, '["a", 1]', "", '["residual", "linear", 0, 0, 4, 0, 20]'))] = (
                torch.zeros(20)
            )
        case _:
            words = json.loads(tensors[_WORDS].numpy().tobytes())
            text = hostile_json(words, rng) or b" "
            tensors[_WORDS] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return bytes_of(tensors)
