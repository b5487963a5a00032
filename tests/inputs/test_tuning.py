"""Tuning by real trials, and the commands."""

import json
import time
from pathlib import Path

import pytest

from autosync.cli import main
from autosync.errors import OperationError
from autosync.inputs.intervals import rate_interval
from autosync.inputs.settings import load_settings
from autosync.inputs.tar_shards import TarShards
from autosync.inputs.trial import InputTrial, InputWork, run_trial
from autosync.inputs.tuning import tune_input
from autosync.specs.input_settings import InputSettings
from autosync.strategy.bundle import Bundle, load_bundle, save_bundle
from autosync.strategy.files import save_strategy
from tests.helpers.shards import write_shards

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


class _Slow:
    """Each example waits, as for a far server; so workers help, whatever the processors do."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, number: int) -> int:
        time.sleep(0.01)
        return number


def test_workers_are_found_where_they_help() -> None:
    told: list[InputTrial] = []
    found = tune_input(_Slow(), batch_size=2, max_trials=3, trial_seconds=0.3, max_workers=2, seed=1, told=told.append)
    assert list(found.trials) == told
    assert len(told) == 3
    assert [trial.settings.num_workers for trial in told[:2]] == [0, 2]
    alone, by_two = (trial.rate for trial in told[:2])
    assert alone is not None
    assert by_two is not None
    # Two wait at a time, so it is twice as many but for what it costs to hand examples over.
    assert by_two.value > 1.3 * alone.value
    assert found.settings.num_workers == 2


def test_a_trial_counts_the_wait_beside_the_compute() -> None:
    work = InputWork(dataset=_Slow(), batch_size=1, compute_seconds=0.01)
    trial = run_trial(work, InputSettings(num_workers=0), number=0, seconds=0.2)
    assert trial.rate is not None
    assert trial.rate.low <= trial.rate.value <= trial.rate.high
    assert trial.rate.value <= 50
    assert trial.wait_seconds > 0.009
    assert trial.bottleneck == "decode"


class _FailsInWorkers(_Slow):
    def __getitem__(self, number: int) -> int:
        from torch.utils.data import get_worker_info

        if get_worker_info() is not None:
            raise OperationError("no handles left")
        return number


def test_a_failed_trial_is_data() -> None:
    found = tune_input(_FailsInWorkers(), batch_size=2, max_trials=2, trial_seconds=0.05, max_workers=1)
    assert found.settings.num_workers == 0
    assert [trial.failure for trial in found.trials] == ["", "no handles left"]


def test_an_interval_covers_the_rate_and_widens_with_noise() -> None:
    even = rate_interval([4] * 40, [0.1] * 40)
    assert even.value == pytest.approx(40)
    assert even.high - even.low < 1e-6
    bursts = rate_interval([4] * 40, [0.01, 0.19] * 10 + [0.1] * 10 + [0.2] * 10)
    assert bursts.low < bursts.value < bursts.high


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shard,) = write_shards(tmp_path, [5])
    (tmp_path / "data.py").write_text(
        "from autosync.inputs.tar_shards import TarShards\n"
        f"def numbers():\n    return TarShards([{str(shard)!r}], decode=lambda sample: int(sample['cls']))\n"
    )
    assert main.run(["input", "show", str(shard), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shards"][0]["field_names"] == ["bin", "cls"]
    arguments = ["--sizes", "1 KiB", "--concurrency", "1,2", "--seconds", "0.01"]
    assert main.run(["input", "measure", str(shard), *arguments]) == 0
    assert "fastest:" in capsys.readouterr().out
    output = tmp_path / "input.yaml"
    tune = ["input", "tune", f"{tmp_path}/data.py:numbers", "--batch-size", "2", "--trials", "1", "--seconds", "0.05"]
    assert main.run([*tune, "-o", str(output), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trials"][0]["settings"]["num_workers"] == 0
    assert load_settings(output).num_workers == 0


def test_settings_that_were_found_are_written_into_a_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], small_bundle: Bundle
) -> None:
    save_bundle(tmp_path / "best.yaml", small_bundle)
    save_strategy(tmp_path / "strategy.yaml", small_bundle.strategy)
    (tmp_path / "data.py").write_text("numbers = list(range(40))\n")
    tune = ["input", "tune", f"{tmp_path}/data.py:numbers", "--batch-size", "2", "--trials", "1", "--seconds", "0.05"]
    for name in ("best", "strategy"):
        into = ["--into", f"{tmp_path}/{name}.yaml", "-o", f"{tmp_path}/{name}-with-input.yaml"]
        assert main.run([*tune, *into]) == 0
        assert load_settings(tmp_path / f"{name}-with-input.yaml").num_workers == 0
    written = load_bundle(tmp_path / "best-with-input.yaml")
    assert written.strategy.input == InputSettings(num_workers=0)
    assert written.plan_id == small_bundle.plan_id
    assert written.strategy_id != small_bundle.strategy_id
    assert main.run([*tune, "--into", f"{tmp_path}/best.yaml"]) == 2
    assert main.run([*tune, "--into", f"{tmp_path}/data.py", "-o", f"{tmp_path}/x.yaml"]) == 2
    assert "--into needs -o" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tune", "{folder}/data.py:numbres", "--batch-size", "2"], "has no 'numbres'"),
        (["tune", "{folder}/data.py", "--batch-size", "2"], "names no dataset"),
        (["tune", "{folder}/data.py:count", "--batch-size", "2"], "gives a value of type int"),
        (["show", "{folder}/none.tar"], "No such file"),
        (["measure", "{folder}/data.py", "--sizes", "many"], "--sizes"),
    ],
)
def test_mistakes_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (tmp_path / "data.py").write_text("count = 3\nnumbers = [1, 2]\n")
    assert main.run(["input", *(one.format(folder=tmp_path) for one in arguments)]) == 2
    assert words in capsys.readouterr().err


def _rate_of(settings: InputSettings) -> float:
    """A store that needs many bytes under way, and small pieces, to give all it can."""
    under_way = max(settings.num_workers, 1) * settings.read_bytes * settings.read_concurrency
    return 700 * min(under_way / 2**22, 1.0) / (1 + settings.read_bytes / 2**24)


def test_a_change_that_harms_is_turned_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_trial(_work: InputWork, settings: InputSettings, *, number: int, seconds: float) -> InputTrial:
        rate = _rate_of(settings) * (1 + 0.004 * (-1) ** number)
        counts, times = (100,) * 8, (100 / rate,) * 8
        return InputTrial(
            number=number,
            settings=settings,
            rate=rate_interval(counts, times),
            bottleneck="read",
            step_counts=counts,
            step_seconds=times,
        )

    monkeypatch.setattr("autosync.inputs.tuning.run_trial", run_trial)
    dataset = TarShards(write_shards(tmp_path, [4]), decode=len)
    for seed in range(20):
        found = tune_input(dataset, batch_size=2, shuffle="shards", seed=seed)
        assert len(found.trials) <= 12
        # With pieces of 1 MiB, and all bytes under way that are needed, the store gives 659 examples a second.
        assert _rate_of(found.settings) > 670, (seed, found.settings)
