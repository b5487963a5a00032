"""The reports of rank 0 arrive whole, however the launching side reads its log."""

from pathlib import Path
from typing import Any

import pytest

from autosync.launchers.log_tail import MAX_LINE_BYTES, LogTail
from autosync.launchers.request import Process
from autosync.loops.reports import ReportReader, report_lines


@pytest.mark.parametrize("num_losses", [1, 30_000])
@pytest.mark.parametrize("num_bytes", [1 << 20, 3 * MAX_LINE_BYTES // 2])
def test_reports_of_any_length_arrive_among_other_lines(num_losses: int, num_bytes: int, tmp_path: Path) -> None:
    reports: list[dict[str, Any]] = []
    shown: list[str] = []

    def told(report: dict[str, Any]) -> bool:
        reports.append(report)
        return "losses" in report

    reader = ReportReader(told=told, show=shown.append)
    process = Process(rank=0, node="n0", host="h", command=("x",), log=tmp_path / "rank-0.log")
    tail = LogTail([process], reader.take)
    whole = {"losses": [1 / (1 + number) for number in range(num_losses)]}
    lines = ["first", *report_lines({"epoch": 1}), "error: of a rank", "last", *report_lines(whole)]
    text = "".join(f"{line}\n" for line in lines).encode()
    for begin in range(0, len(text), num_bytes):
        with process.log.open("ab") as log:
            log.write(text[begin : begin + num_bytes])
        assert not reader.is_done
        tail.poll()
    tail.finish()
    assert reports == [{"epoch": 1}, whole]
    assert reader.is_done
    assert shown == ["n0 rank 0 | first", "n0 rank 0 | last"]
