"""Damage is repeatable, of every kind that it says, and leaves the original alone."""

from __future__ import annotations

import json
import os
import random
import stat
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from tests.helpers.damaged_files import (
    damaged,
    damaged_lines,
    damaged_tensors,
    hostile_json,
    hostile_values,
    lead_astray,
)

_VALUE = {"name": "x", "sizes": [1, 2.5, None], "nodes": [{"a": True}, {"b": "two"}]}
_LINES = b"".join(json.dumps({"op_code": code, "trial_id": code}).encode() + b"\n" for code in range(8))


def test_hostile_documents_are_repeatable_and_say_what_parsers_stumble_over() -> None:
    before = json.dumps(_VALUE)
    texts = [hostile_json(_VALUE, random.Random(seed)) for seed in range(1500)]
    assert json.dumps(_VALUE) == before
    assert texts == [hostile_json(_VALUE, random.Random(seed)) for seed in range(1500)]
    assert len(set(texts)) > 700
    whole = b" ".join(texts)
    for oddity in (
        b"1e400",
        b"NaN",
        b"-0",
        b"[[[[[[",
        b'{"a": {"a": ',
        b"9" * 400,
        b"../../x",
        b'"k999": 0',
        b"/dev/zero",
    ):
        assert oddity in whole, oddity
    # A key that stands twice.
    assert any(text.count(b'"name"') == 2 for text in texts)


def test_most_hostile_documents_are_well_formed() -> None:
    whole = 0
    for seed in range(300):
        try:
            json.loads(hostile_json(_VALUE, random.Random(seed)))
        except (ValueError, RecursionError):
            continue
        whole += 1
    assert whole > 200
    assert hostile_values(3, random.Random(0)) == 3


@pytest.mark.parametrize("raw", [b"", b"a", b"abc" * 1000])
def test_damaged_bytes_are_other_bytes(raw: bytes) -> None:
    found = [damaged(raw, random.Random(seed)) for seed in range(300)]
    assert found == [damaged(raw, random.Random(seed)) for seed in range(300)]
    assert sum(one != raw for one in found) > (250 if len(raw) > 1 else 30)


def test_lines_are_lost_doubled_exchanged_and_of_others() -> None:
    found = [damaged_lines(_LINES, random.Random(seed), others=[b"strange\n"]) for seed in range(400)]
    counts = {one.count(b"\n") for one in found}
    assert {7, 8, 9} <= counts
    assert any(b"strange" in one for one in found)
    assert any(sorted(one.splitlines()) == sorted(_LINES.splitlines()) and one != _LINES for one in found)
    assert damaged_lines(b"", random.Random(0)) == b""


def test_tables_of_tensors_lie() -> None:
    raw = save({"a": torch.ones(3), "b": torch.zeros(2, 2)})
    refused = 0
    for seed in range(300):
        try:
            load(damaged_tensors(raw, random.Random(seed)))
        except (SafetensorError, KeyError, ValueError, OverflowError, RuntimeError):
            refused += 1
    assert 150 < refused < 300


def test_files_lead_astray_in_every_way(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not yours", encoding="utf-8")
    found = set()
    for seed in range(200):
        file = tmp_path / f"file-{seed}"
        file.touch()
        what = lead_astray(file, outside, random.Random(seed))
        found.add(what)
        there = os.path.lexists(file)
        assert there == (what != "missing")
        if what == "pipe":
            assert stat.S_ISFIFO(file.stat().st_mode)
        if what == "link":
            assert file.read_text(encoding="utf-8") == "not yours"
        if what == "hole":
            assert file.stat().st_size >= 2**20
            assert file.stat().st_blocks == 0
    assert found == {"missing", "folder", "pipe", "device", "zeros", "link", "dangling", "loop", "empty", "hole"}
    assert outside.read_text(encoding="utf-8") == "not yours"
