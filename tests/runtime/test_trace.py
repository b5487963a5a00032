"""A timeline is a Chrome trace that opens whole, and after a crash too."""

import copy
import json
import time
from pathlib import Path

import pytest
import torch

from autosync.errors import OperationError
from autosync.runtime.engine.trace import COMPUTE, ComputeSpan, Trace, trace_path
from autosync.runtime.local.joint_optimizer import joined


def _events(path: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(path.read_text())
    return found


def test_each_rank_has_a_file_of_its_own() -> None:
    assert trace_path(Path("out/trace.json"), 3) == Path("out/trace-rank3.json")
    assert trace_path(Path("trace"), 0) == Path("trace-rank0.json")


def test_spans_lie_where_they_were_measured(tmp_path: Path) -> None:
    path = tmp_path / "made" / "trace.json"
    trace = Trace(path, rank=2, host="n1")
    trace.name_thread(5, "lane 3")
    before = time.time_ns() / 1e3
    start = time.perf_counter_ns()
    trace.add("transfer", "all_reduce of w (operation 7)", 5, start, iteration=4)
    trace.close()
    names = {(e["name"], e["tid"]): e["args"] for e in _events(path) if e["name"] in ("process_name", "thread_name")}
    assert names["process_name", COMPUTE] == {"name": "rank 2 on n1"}
    assert names["thread_name", 5] == {"name": "lane 3"}
    (span,) = [event for event in _events(path) if event["ph"] == "X"]
    assert (span["pid"], span["tid"], span["cat"], span["args"]) == (2, 5, "transfer", {"iteration": 4})
    assert isinstance(span["ts"], float)
    assert isinstance(span["dur"], float)
    # Two clocks: they agree on the date, which is what they are asked for.
    assert abs(span["ts"] - before) < 60e6
    assert span["dur"] > 0


def test_what_a_crash_leaves_is_an_array_without_its_end(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t.json", rank=0, host="here")
    trace.add("local", "average of w", 1, time.perf_counter_ns(), iteration=0)
    trace.write()
    text = (tmp_path / "t.json").read_text()
    assert text.endswith(",\n")
    assert len(json.loads(text.rstrip(",\n") + "]")) == 3
    trace.close()
    trace.close()
    assert len(_events(tmp_path / "t.json")) == 4


def test_training_is_spans_of_forward_backward_and_optimizer(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compute = ComputeSpan(Trace(tmp_path / "t.json", rank=0, host="here"), model, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        compute.backward_ends()
        optimizer.step()
    with torch.no_grad():
        model(torch.ones(1, 3))
    compute.close()
    model(torch.ones(1, 3))
    spans = [(e["name"], e["args"]) for e in _events(tmp_path / "t.json") if e["ph"] == "X"]
    steps = [(name, {"iteration": number}) for number in range(2) for name in ("forward", "backward", "optimizer")]
    assert spans == [*steps, ("forward", {"iteration": 2})]


def test_several_optimizers_step_in_one_iteration(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    first, second = (torch.optim.SGD([one], lr=0.1) for one in model.parameters())
    compute = ComputeSpan(Trace(tmp_path / "t.json", rank=0, host="here"), model, joined([first, second]))
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        compute.backward_ends()
        second.step()
        first.step()
    compute.close()
    spans = [(e["name"], e["args"]) for e in _events(tmp_path / "t.json") if e["ph"] == "X"]
    names = ("forward", "backward", "optimizer", "optimizer")
    assert spans == [(name, {"iteration": number}) for number in range(2) for name in names]


def test_a_model_is_saved_and_copied_without_its_timeline(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compute = ComputeSpan(Trace(tmp_path / "t.json", rank=0, host="here"), model, optimizer)
    torch.save(model, tmp_path / "model.pt")
    for copied in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        copied(torch.ones(1, 3)).sum().backward()
    copy.deepcopy(optimizer).step()
    compute.close()
    assert [event for event in _events(tmp_path / "t.json") if event["ph"] == "X"] == []


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperationError, match="no trace can be written"):
        Trace(tmp_path / "file" / "t.json", rank=0, host="here")


def test_a_file_that_is_no_trace_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text("my thesis", encoding="utf-8")
    with pytest.raises(OperationError, match="the file there is no trace"):
        Trace(path, rank=0, host="h0")
    assert path.read_text(encoding="utf-8") == "my thesis"
