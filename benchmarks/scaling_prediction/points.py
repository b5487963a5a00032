"""The folder of the benchmark: probes, predictions and measured points, each written once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosync import jsonio
from autosync.documents import without_file
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.files import parse_strategy
from autosync.strategy.representation import Strategy

MODELS = Path(__file__).parent / "models"
KINDS = ("stock_ddp", "best")


@dataclass(frozen=True, slots=True)
class Target:
    """A model on hosts with links of one rate."""

    model: str
    megabits: float

    @property
    def name(self) -> str:
        """The name of the target's files."""
        return f"{self.model.replace('@', '-')}-{self.megabits:g}"

    def load_model(self) -> ModelSpec:
        """Return the benchmark's own model of this name, or else the shipped one."""
        stem, *suffix = self.model.split("@")
        path = MODELS / f"{stem}.yaml"
        return load_model("@".join([str(path), *suffix]) if path.is_file() else self.model)


class PointFolder:
    """The files of one benchmark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def probed(self, megabits: float) -> ClusterSpec | None:
        """Return the probed hosts with links of this rate; None if they were not probed yet."""
        path = self._probe(megabits)
        return load_cluster(str(path)) if path.is_file() else None

    def keep_probed(self, megabits: float, cluster: ClusterSpec) -> None:
        save_cluster(self._probe(megabits), cluster)

    def pace(self, megabits: float) -> float:
        """Return the seconds of a fixed computation when hosts with links of this rate were probed."""
        return float(json.loads(self._pace(megabits).read_text(encoding="utf-8")))

    def keep_pace(self, megabits: float, seconds: float) -> None:
        jsonio.write_text(self._pace(megabits), json.dumps(seconds))

    def prediction(self, target: Target) -> dict[str, Any] | None:
        """Return a target's prediction; None if there is none yet."""
        path = self._prediction(target)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def keep_prediction(self, target: Target, prediction: Mapping[str, Any]) -> None:
        jsonio.write_json(self._prediction(target), prediction)

    def targets(self) -> list[Target]:
        """Return the targets that have a prediction."""
        found = []
        for path in sorted(self.path.glob("*-predicted.json")):
            model = json.loads(path.read_text(encoding="utf-8"))["model"]
            found.append(Target(model, float(path.stem.split("-")[-2])))
        return found

    def hosts(self, target: Target) -> list[int]:
        """Return the numbers of hosts on which a target was measured."""
        prediction = self.prediction(target) or {"sizes": []}
        return [size["nodes"] for size in prediction["sizes"] if self._point(target, size["nodes"]).is_file()]

    def point(self, target: Target, hosts: int) -> dict[str, Any] | None:
        """Return the measurements on some hosts; None if there are none yet."""
        path = self._point(target, hosts)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def keep_point(self, target: Target, hosts: int, point: Mapping[str, Any]) -> None:
        jsonio.write_json(self._point(target, hosts), point)

    def _probe(self, megabits: float) -> Path:
        return self.path / f"probed-{megabits:g}.yaml"

    def _pace(self, megabits: float) -> Path:
        return self.path / f"pace-{megabits:g}.json"

    def _prediction(self, target: Target) -> Path:
        return self.path / f"{target.name}-predicted.json"

    def _point(self, target: Target, hosts: int) -> Path:
        return self.path / f"{target.name}-on-{hosts}.json"


def best_at(prediction: Mapping[str, Any], hosts: int) -> Strategy | None:
    """Return the strategy that was found for some hosts; None if stock DDP was not predicted to be slower."""
    (size,) = (one for one in prediction["sizes"] if one["nodes"] == hosts)
    found = size["best"]["strategy"]
    return None if found is None else parse_strategy(without_file(found))


def figures_of(folder: PointFolder, targets: Sequence[Target], hosts: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each measured figure beside its prediction."""
    rows = []
    for target in targets:
        prediction = folder.prediction(target)
        sizes = {size["nodes"]: size for size in prediction["sizes"]} if prediction else {}
        for number in hosts:
            point = folder.point(target, number)
            for kind in KINDS if point and number in sizes else ():
                measured = point[kind] if point else None
                if measured is not None:
                    head = {"model": target.model, "megabits": target.megabits, "hosts": number, "kind": kind}
                    rows.append({**head, **measured, "predicted": sizes[number][kind]["step_seconds"]})
    return rows
