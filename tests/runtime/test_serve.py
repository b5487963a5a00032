"""Ranks that only serve: real processes, exact against stock DDP, one training after another, and each way to end."""

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest
import torch

from autosync.errors import OperationError
from autosync.pictures.trace_file import read_trace
from autosync.plan.lowering import lower
from autosync.runtime.serving.invitations import Invitation, Word, servers_of
from autosync.runtime.serving.serve import Server
from autosync.runtime.session.support import unsupported
from autosync.signatures import SECRET_VARIABLE
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.bundle import load_bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Limits, Space
from tests.runtime.served_ranks import HERE, Served, bundle_of_small, cluster, on_server


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and servers have it, as under `autosync launch`."""
    monkeypatch.setenv(SECRET_VARIABLE, "of workers and servers")


@pytest.fixture
def make_served(make_ranks: Callable[[str], Any]) -> Iterator[Callable[[ClusterSpec], Served]]:
    made: list[Served] = []

    def make(spec: ClusterSpec) -> Served:
        ranks = make_ranks("one node")
        ranks.cluster = spec
        made.append(Served(ranks))
        return made[-1]

    yield make
    for served in made:
        served.stop()


def _uses_servers(strategy: Strategy, task: str, served: Served, model: Any) -> bool:
    plan = lower(strategy, model(task), served.ranks.cluster)
    return strategy.is_exact and bool(servers_of(plan)) and not unsupported(plan)


def _samples(task: str, served: Served, model: Any, count: int, overlap: Any) -> Iterator[Strategy]:
    space = Space(model=model(task), cluster=served.ranks.cluster, limits=Limits(overlaps=(overlap,)))
    rng, seen = random.Random(0), set()
    for _ in range(60 * count):
        strategy = space.sample(rng)
        identity = strategy_id(strategy, model(task), served.ranks.cluster)
        if identity not in seen and _uses_servers(strategy, task, served, model):
            seen.add(identity)
            yield strategy
        if len(seen) == count:
            return


@pytest.fixture
def model() -> Any:
    import importlib

    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(HERE / "conftest.py"):
            return module.model
    return importlib.import_module("conftest").model


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_training_with_a_server_is_that_of_stock_ddp(
    overlap: str, make_served: Callable[[ClusterSpec], Served], model: Any
) -> None:
    served = make_served(cluster(devices=(2, 1)))
    named: dict[tuple[str, str], Strategy] = {}
    for task, count in {"convnet": 2, "odd": 2, "transformer": 8, "clipped": 2}.items():
        for update in ("server", "worker"):
            for proxy in (False, True):
                strategy = on_server(task, model, overlap, update=update, local_proxy=proxy)
                if _uses_servers(strategy, task, served, model):
                    named[task, f"{update} {proxy}"] = strategy
        for index, strategy in enumerate(_samples(task, served, model, count, overlap)):
            named[task, f"sample {index}"] = strategy
    assert len(named) > 20
    bundles = {
        (task, name): served.bundle(f"{task}-{number}", strategy, task)
        for number, ((task, name), strategy) in enumerate(named.items())
    }
    served.serve(list(bundles.values()))
    answers = served.ranks.run([("exact", {"task": task, "bundle": path}) for (task, _), path in bundles.items()])
    for rank, given in enumerate(answers):
        found = {key: answer for key, answer in zip(bundles, given, strict=False) if answer}
        assert found == {}, f"rank {rank}: {served.log()}"
        assert len(given) == len(bundles), f"rank {rank}:\n{(served.folder / 'log').read_text()}\n{served.log()}"
    assert served.answers() == [3] * len(bundles)


@pytest.mark.slow
def test_time_between_steps_is_no_failure(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    """The server here waits 20 s for others within a step; workers 6 s, and 12 s pass."""
    served = make_served(cluster(num_servers=2))
    bundle = bundle_of_small(served, model)
    served.serve([bundle, bundle])
    answers = served.ranks.run([("idles", {"bundle": bundle, "seconds": 12.0}), ("never_releases", {"bundle": bundle})])
    assert answers == [["", ""]] * 2, served.log()
    assert served.answers("s0") == [3, 3]
    # Nothing is placed there, but it is a rank of the plan.
    assert served.answers("s1") == [3, 3]


@pytest.mark.slow
def test_time_between_steps_is_no_failure_where_a_worker_has_no_share_of_the_norm(
    make_served: Callable[[ClusterSpec], Served], model: Any
) -> None:
    served = make_served(cluster(devices=(2, 1)))
    strategy = on_server("clipped", model, "backward", local_proxy=True)
    bundle = served.bundle("clipped", strategy, "clipped")
    served.serve([bundle])
    assert served.ranks.run_one("idles", bundle=bundle, seconds=12.0, task="clipped") == [""] * 3, served.log()


@pytest.mark.slow
def test_a_server_writes_its_timeline_as_the_others_do(
    make_served: Callable[[ClusterSpec], Served], model: Any, tmp_path: Path
) -> None:
    from autosync.cli import main

    served = make_served(cluster())
    bundle = bundle_of_small(served, model)
    served.serve([bundle])
    assert served.ranks.run_one("traced", bundle=bundle, path=str(tmp_path / "made" / "t.json")) == ["", ""]
    assert served.answers() == [3], served.log()
    files = [tmp_path / "made" / f"t-rank{number}.json" for number in range(3)]
    first, _, server = [rank for file in files for rank in read_trace(file)]
    assert server.name == "rank 2 on s0"
    assert [name.replace("training", "serving") for name in first.tracks.values()] == [*server.tracks.values()]
    for kind in ("transfer", "local"):
        of_kind = [span for span in server.spans if span.kind == kind]
        assert {span.iteration for span in of_kind} == {0, 1, 2}
    # What it does there is what the others meet it in, and at the same time.
    met = {span.name for span in server.spans if span.kind == "transfer"}
    assert met == {span.name for span in first.spans if span.kind == "transfer"}
    began, ended = first.spans[0].start, first.spans[-1].end
    assert began - 1 < min(span.start for span in server.spans) < max(span.end for span in server.spans) < ended + 1
    json.loads(files[2].read_text())
    picture = tmp_path / "t.svg"
    assert main.run(["draw", "timeline", str(files[2]), str(files[0]), "--steps", "1", "-o", str(picture)]) == 0
    assert "rank 2 on s0" in picture.read_text()


def test_a_worker_that_dies_ends_the_server(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    served = make_served(cluster())
    bundle = bundle_of_small(served, model)
    served.serve([bundle])
    told, _ = served.ranks.run_one("dies", bundle=bundle)
    (answer,) = served.answers()
    assert answer.startswith("OperationError: rank 2: reduce of ")
    assert "rank 1 on n1" in answer
    assert told.startswith("OperationError: rank 0: ")


@pytest.mark.slow
def test_workers_that_are_gone_without_a_word_end_the_server(
    make_served: Callable[[ClusterSpec], Served], model: Any
) -> None:
    served = make_served(cluster())
    bundle = bundle_of_small(served, model)
    served.serve([bundle])
    # They trained right, and were gone before the session had an end.
    told = served.ranks.run_one("never_releases", bundle=bundle, exits=False)
    assert [answer.startswith("; threads left: ") for answer in told] == [True, True]
    (answer,) = served.answers()
    assert answer.startswith("OperationError: rank 2: no word from rank 0 on n0: ")


@pytest.mark.slow
def test_a_server_goes_on_from_the_optimizers_state(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    """Steps that were made before servers were there; checkpoints are tested where all ways to train are."""
    served = make_served(cluster())
    bundle = bundle_of_small(served, model)
    served.serve([bundle])
    assert served.ranks.run_one("resumes", bundle=bundle) == ["", ""], served.log()


def test_workers_hear_of_a_server_that_dies(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    served = make_served(cluster())
    bundle = bundle_of_small(served, model)
    served.serve([bundle])
    answers = served.ranks.run_one("server_dies", bundle=bundle, server=served.pids[0])
    for rank, told in enumerate(answers):
        assert told.startswith(("OperationError: rank", "OperationError: no word reaches rank 2 on s0")), rank
        assert "rank 2 on s0" in told


@pytest.mark.slow
def test_another_bundle_is_refused_on_all_ranks(make_served: Callable[[ClusterSpec], Served], model: Any) -> None:
    served = make_served(cluster())
    theirs, ours = bundle_of_small(served, model), bundle_of_small(served, model, update="worker")
    served.serve([ours])
    answers = served.ranks.run_one("different_bundles", bundles=[theirs, theirs])
    for told in (*answers, *served.answers()):
        assert told.startswith("OperationError: the server on s0 has strategy ")
        assert told.endswith("(all ranks must have the same)")


def test_without_a_server_workers_say_how_to_start_one(
    make_served: Callable[[ClusterSpec], Served], model: Any
) -> None:
    served = make_served(cluster())
    bundle = bundle_of_small(served, model)
    answers = served.ranks.run([("odd_option", {"bundle": bundle}), ("idles", {"bundle": bundle, "seconds": 2.0})])
    for odd, told in answers:
        # Every rank sees this by itself, before a server is called.
        assert odd.startswith("OperationError: the optimizer's option weight_decay is a Fraction, which cannot be sent")
        assert told.startswith(
            "OperationError: no server is there for node s0 after 1 s "
            "(the strategy needs one: autosync serve BUNDLE --node s0); "
        )


def test_strangers_do_not_choose_where_a_server_writes(
    make_served: Callable[[ClusterSpec], Served],
    model: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = Invitation(
        session="autosync/0/0,1/0", rank=2, checks=True, trace=str(tmp_path / "victim.json"), number="0" * 32
    )
    bundle = load_bundle(bundle_of_small(make_served(cluster()), model))
    assert Server(bundle, node="s0")._trace_path(wanted) == tmp_path / "victim.json"
    monkeypatch.delenv(SECRET_VARIABLE)
    assert Server(bundle, node="s0")._trace_path(wanted) is None
    assert "no timeline is written" in caplog.text


class Saying:
    """Links over which the first worker says these words."""

    rank = 2

    def __init__(self, *words: Word) -> None:
        self._words = list(words)

    def name(self, rank: int) -> str:
        return f"rank {rank} on n{rank}"

    def receive(self, header: torch.Tensor, _peer: int, _tag: int) -> Any:
        header[0] = get_args(Word).index(self._words.pop(0))
        return self

    def wait(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(make_served: Callable[[ClusterSpec], Served], model: Any) -> Server:
    return Server(load_bundle(bundle_of_small(make_served(cluster()), model)), node="s0")


def test_a_first_word_that_begins_no_training_is_refused(server: Server) -> None:
    invitation = Invitation(session="autosync/0/0,1/0", rank=2, checks=True, trace=None, number="0" * 32)
    links: Any = Saying("step called")
    with pytest.raises(OperationError, match="rank 0 on n0 said 'step called' before 'training begins'"):
        server._serve(links, invitation, begun=None)


def test_a_word_that_is_none_of_training_is_refused(server: Server) -> None:
    engine, execution = Mock(), Mock(optimizer=None)
    links: Any = Saying("iteration begins", "step called", "training begins")
    with pytest.raises(OperationError, match="rank 0 on n0 said 'training begins' in the middle of training"):
        server._follow(engine, execution, {}, links, None)
    assert engine.step_called.call_count == 1


@pytest.mark.slow
def test_a_strategy_without_work_for_servers_needs_none(
    make_served: Callable[[ClusterSpec], Served], model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from autosync.cli import main

    served = make_served(cluster())
    strategy = Strategy(messages=(Message(parts=tuple(v.name for v in model("small").variables)),))
    bundle = served.bundle("alone", strategy, "small")
    assert served.ranks.run_one("exact", task="small", bundle=bundle) == ["", ""]
    assert main.run(["serve", bundle, "--node", "s0", "--rendezvous", "tcp://127.0.0.1:1"]) == 2
    assert "no work for a server" in capsys.readouterr().err
