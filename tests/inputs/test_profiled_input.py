"""A profile of the input has what an example costs and what a step waits for."""

import socket
import time
from pathlib import Path

import pytest

from autosync.cli import main
from autosync.inputs.meter import ReadTotals
from autosync.inputs.observation import InputReport, WorkerWork
from autosync.inputs.profiled_input import cost_of, profile_input
from autosync.specs.input_settings import InputSettings
from autosync.testing.simulators import two_layers


class _Slow:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> int:
        time.sleep(0.02)
        return number


def test_the_work_on_an_example_is_measured() -> None:
    found = profile_input(_Slow(), two_layers(), InputSettings(num_workers=0), seconds=0.1)
    assert found.cost.example_bytes == 0
    assert found.cost.worker_seconds >= 0.02
    # It sleeps.
    assert found.cost.cpu_seconds is not None
    assert found.cost.cpu_seconds < 0.01
    assert found.report.median_wait_seconds >= 0.02
    words = found.in_words()
    assert words.startswith("input: no workers; a step waits ")
    assert "decode" in words


def test_bytes_of_this_machine_do_not_cross_its_interface() -> None:
    hosts = {
        socket.gethostname(): ReadTotals(num_bytes=1000),
        "far:80": ReadTotals(num_bytes=400, num_requests=2, request_seconds=0.5),
    }
    report = InputReport(
        num_steps=2,
        num_examples=4,
        first_wait_seconds=0.0,
        wait_seconds=0.0,
        median_wait_seconds=0.0,
        slow_wait_seconds=0.0,
        workers=(WorkerWork(worker=0, read_seconds=9.0, decode_seconds=1.0, collate_seconds=1.0, cpu_seconds=0.4),),
        hosts=hosts,
    )
    cost = cost_of(report)
    assert (cost.example_bytes, cost.worker_seconds, cost.cpu_seconds) == (100.0, 0.5, 0.1)
    assert cost.processor_share == pytest.approx(0.2)
    assert cost.dilated(4).processor_share == pytest.approx(0.2)


def test_settings_need_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    task = str(Path(__file__).parents[2] / "examples" / "convnet.py")
    assert main.run(["profile", task, "--input-settings", "input.yaml"]) == 2
    assert "add --input FILE.py:NAME" in capsys.readouterr().err
