"""Launches of ranks that save and load checkpoints, under bundles made for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from autosync.plan.bundling import bundled
from autosync.strategy.bundle import save_bundle
from tests.helpers.example_plans import Example


def bundle_of(example: Example, folder: Path, name: str) -> str:
    bundle = bundled(example.strategy, example.model, example.cluster)
    path = folder / f"{name}.yaml"
    save_bundle(path, bundle)
    return str(path)


class Launch:
    """Ranks of one cluster, with the server that it may have."""

    def __init__(self, ranks: Any, example: Example, serve: Callable[..., Any]) -> None:
        self.ranks = ranks
        self.ranks.cluster = example.cluster
        self._serve = serve
        self._server = next((node.name for node in example.cluster.nodes if node.role == "server"), None)

    def run(self, cases: list[tuple[str, dict[str, Any]]], *, num_trainings: int = 1) -> list[list[Any]]:
        """What each rank answers; every case has so many trainings, one after another."""
        if self._server is not None:
            served = [arguments["bundle"] for _, arguments in cases for _ in range(num_trainings)]
            self._serve(self.ranks.folder, served, self._server)
        named = [(f"checkpoint_cases:{name}", arguments) for name, arguments in cases]
        found: list[list[Any]] = self.ranks.run(named)
        log = (self.ranks.folder / "log").read_text()
        for rank, answers in enumerate(found):
            assert len(answers) == len(cases), f"rank {rank}: {answers[-1:]}\n{log}"
        return found
