"""A folder with a model spec and a cluster file, and a way to run a command line in it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autosync.cli import main
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.model_file import save_model

SHAPES = {"conv.weight": (64, 3, 7, 7), "conv.bias": (64,), "fc.weight": (1000, 512), "fc.bias": (1000,)}


class Shell:
    """Runs command lines in a folder; what they printed is in `out` and `err`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def run(self, *arguments: str | Path) -> int:
        self._capsys.readouterr()
        code = main.run([str(argument) for argument in arguments])
        self.out, self.err = self._capsys.readouterr()
        return code

    def json(self, *arguments: str | Path) -> Any:
        """The one JSON document of a command that succeeds."""
        assert self.run(*arguments, "--json") == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    save_model(_model(), Path("model.yaml"))
    nodes = tuple(Node(name=f"n{i}", host="localhost", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(3))
    save_cluster(Path("cluster.yaml"), ClusterSpec(name="three", nodes=nodes))
    return Shell(capsys)


@pytest.fixture
def build(shell: Shell) -> Callable[..., Path]:
    """Writes the strategy of a preset for the model on the cluster."""

    def write(preset: str, name: str, *options: str) -> Path:
        arguments = ("strategy", "build", preset, "model.yaml", "--cluster", "cluster.yaml", "-o", name)
        assert shell.run(*arguments, *options) == 0, shell.err
        return Path(name)

    return write


def _model() -> ModelSpec:
    last = len(SHAPES) - 1
    variables = tuple(
        Variable(name=name, shape=shape, use=position, ready=last - position)
        for position, (name, shape) in enumerate(SHAPES.items())
    )
    segment = Segment(module="all", seconds=0.01, variables=tuple(SHAPES))
    timeline = Timeline(device="cpu", source="computed", forward=(segment,), backward=(segment,))
    return ModelSpec(name="tiny", optimizer=OptimizerSpec(name="SGD"), variables=variables, timeline=timeline)
