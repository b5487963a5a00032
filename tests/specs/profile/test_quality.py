"""What is said of a profile that cannot be trusted; that files carry it, and fingerprints do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import DocumentError
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.model_file import load_model, save_model
from autosync.specs.profile.quality import interval_in_words, profile_fields, profile_warning
from autosync.specs.profiled import Profiled

BUSY = Profiled(
    num_steps=31,
    low_seconds=0.019,
    high_seconds=0.392,
    other_cpu_share=0.4,
    waited_share=0.31,
    flags=("busy_machine", "unsteady"),
)


def _model(profiled: Profiled | None) -> ModelSpec:
    segment = Segment(module="w", seconds=0.047, variables=("w",))
    timeline = Timeline(
        device="a processor",
        source="measured",
        profiled=profiled,
        forward=(segment,),
        backward=(segment,),
        optimizer=(segment,),
    )
    variable = Variable(name="w", shape=(3,), use=0, ready=0)
    return ModelSpec(name="m", optimizer=OptimizerSpec(name="SGD"), variables=(variable,), timeline=timeline)


def test_a_busy_machine_is_told_with_the_interval() -> None:
    assert profile_warning(_model(BUSY)) == (
        "the profile was taken on a busy machine: 141 ms, 95 % between 19 ms and 392 ms (profile again on an idle one)"
    )


def test_an_unsteady_profile_is_told_with_its_steps() -> None:
    assert profile_warning(_model(replace(BUSY, flags=("unsteady",)))) == (
        "the profile is not steady: 141 ms, 95 % between 19 ms and 392 ms after 31 steps "
        "(profile again, with more --steps)"
    )


def test_of_too_few_steps_on_a_busy_machine_there_is_no_interval() -> None:
    model = _model(Profiled(num_steps=1, flags=("busy_machine",)))
    assert profile_warning(model) == "the profile was taken on a busy machine: 141 ms (profile again on an idle one)"
    assert interval_in_words(model) == "1 step measured, too few for an interval (6 or more)"


@pytest.mark.parametrize("profiled", [None, replace(BUSY, flags=())])
def test_nothing_is_said_where_nothing_speaks_against_it(profiled: Profiled | None) -> None:
    assert profile_warning(_model(profiled)) is None


def test_the_same_for_programs() -> None:
    model = _model(BUSY)
    assert profile_fields(_model(None)) is None
    assert profile_fields(model) == {
        "seconds": pytest.approx(0.141),
        "low_seconds": 0.019,
        "high_seconds": 0.392,
        "num_steps": 31,
        "other_cpu_share": 0.4,
        "waited_share": 0.31,
        "flags": ["busy_machine", "unsteady"],
        "in_words": profile_warning(model),
    }


def test_slow_motion_is_as_doubtful() -> None:
    slow = _model(BUSY).dilated(10)
    assert slow.timeline.profiled == replace(BUSY, low_seconds=0.019 * 10, high_seconds=0.392 * 10)
    assert "1.41 s, 95 % between 190 ms and 3.92 s" in str(profile_warning(slow))
    few = Profiled(num_steps=1)
    assert few.dilated(10) == few


def test_fingerprints_compare_ranks_and_not_machines() -> None:
    assert _model(BUSY).fingerprint() == _model(None).fingerprint()


@pytest.mark.parametrize("name", ["m.yaml", "m.json"])
@pytest.mark.parametrize("profiled", [BUSY, replace(BUSY, flags=()), Profiled(num_steps=1), None])
def test_files_carry_it(name: str, profiled: Profiled | None, tmp_path: Path) -> None:
    save_model(_model(profiled), tmp_path / name)
    assert load_model(str(tmp_path / name)) == _model(profiled)
    assert ("profiled" in (tmp_path / name).read_text(encoding="utf-8")) == (profiled is not None)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ("{num_steps: 0}", "0 steps measure nothing"),
        ("{num_steps: 6, low_seconds: 1.0}", "half an interval"),
        ("{num_steps: 6, low_seconds: 2.0, high_seconds: 1.0}", "2.0 to 1.0 is no interval"),
        ("{num_steps: 6, low_seconds: .nan, high_seconds: 1.0}", "profiled"),
        ("{num_steps: 6, waited_share: 1.5}", "1.5 is no share"),
        ("{num_steps: 6, flags: [idle]}", "flags"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(fields: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    save_model(_model(None), path)
    text = path.read_text(encoding="utf-8").replace(
        "  source: measured\n", f"  source: measured\n  profiled: {fields}\n"
    )
    path.write_text(text, encoding="utf-8")
    line = 1 + text.splitlines().index(f"  profiled: {fields}")
    with pytest.raises(DocumentError) as error:
        load_model(str(path))
    assert f"m.yaml:{line}: " in str(error.value)
    assert what in str(error.value)
