"""Compares tuning input and synchronisation together with tuning the input first and synchronisation then.

python benchmarks/input_tuning/together.py --only alike --folder results > together.json

On a testbed of two workers and a store, for tasks whose examples and gradients share links. Both ways use the same
search and the same number of trials. The second begins with input settings alone, under the messages of stock DDP, and
searches messages under the settings that won. At the end, both winners and stock DDP are measured in turn. A workload
whose result is in the folder is not measured again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from autosync import testbed
from autosync.datasets.studies import read_study
from autosync.errors import OperationError
from autosync.launchers.testbed import TestbedLauncher
from autosync.plan.bound import bound
from autosync.search.candidates import candidate, strategy_of
from autosync.search.proposers.interface import Domain, Ground
from autosync.search.proposers.learned import Learned
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.input_settings import InputSettings
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.strategy.space.input_choice import InputChoice, input_choice, with_input
from autosync.trials.compare import Design, compare
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialService
from benchmarks.input_tuning import linked_tasks
from benchmarks.input_tuning.workloads import limited_server, write_shards
from benchmarks.kept_studies import kept_study
from benchmarks.shared import parser_of, report, run, tell, this_machine

CLUSTER = """schema: autosync.cluster/1
name: input-store
launcher: testbed
nodes:
  - {name: host, count: 2, bandwidth: 200 Mbit/s}
  - {name: store, role: server, bandwidth: 1 Gbit/s}
"""
PORT = 8123
NUM_SAMPLES = 512
"""The examples of a shard. An epoch then has 64 steps: shorter ones are more about their ends than about links."""
DESIGN = Design(num_steps=240, num_rounds=24, budget_seconds=480.0)
"""Steps that read from the store wait for several batches by turns, so their mean needs many of them."""
START_SECONDS = 90.0
LEAST_WINS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedInput:
    """A domain whose strategies all read with the same settings."""

    domain: Domain
    settings: InputSettings

    def sample(self, rng: random.Random) -> Strategy:
        return self._fixed(self.domain.sample(rng))

    def mutate(self, strategy: Strategy, rng: random.Random) -> Strategy:
        return self._fixed(self.domain.mutate(strategy, rng))

    def crossover(self, first: Strategy, second: Strategy, rng: random.Random) -> Strategy:
        return self._fixed(self.domain.crossover(first, second, rng))

    def nearest(self, strategy: Strategy) -> Strategy:
        return self._fixed(strategy)

    def contains(self, strategy: Strategy) -> bool:
        return self.domain.contains(strategy)

    def _fixed(self, strategy: Strategy) -> Strategy:
        return with_input(strategy, self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAlone:
    """A domain whose strategies all send the messages of stock DDP, and differ in their input settings."""

    ddp: Strategy
    choice: InputChoice

    def sample(self, rng: random.Random) -> Strategy:
        return with_input(self.ddp, self.choice.draw(rng))

    def mutate(self, strategy: Strategy, rng: random.Random) -> Strategy:
        return with_input(self.ddp, self.choice.change(strategy.input, rng))

    def crossover(self, first: Strategy, second: Strategy, rng: random.Random) -> Strategy:
        # Settings are few, and a change of one of them reaches all.
        return self.mutate(rng.choice((first, second)), rng)

    def nearest(self, strategy: Strategy) -> Strategy:
        return with_input(self.ddp, strategy.input)

    def contains(self, strategy: Strategy) -> bool:
        return strategy == with_input(self.ddp, strategy.input)


def messages_alone(settings: InputSettings, ground: Ground) -> Learned:
    """Return the proposer of messages, where all strategies read with these settings."""
    known = [
        candidate(one.origin, with_input(one.strategy, settings), ground.model, ground.cluster)
        for one in ground.known
        if one.strategy is not None
    ]
    return Learned(replace(ground, domain=FixedInput(domain=ground.domain, settings=settings), known=tuple(known)))


def input_alone(ground: Ground) -> Learned:
    """Return the proposer of input settings, where all strategies send the messages of stock DDP."""
    choice = input_choice(ground.model, ground.limits, ground.cluster.backend)
    assert choice is not None, "the tasks have datasets"
    ddp = with_input(build_preset("ddp", ground.model, ground.cluster), choice.usual)
    known = (candidate("preset:ddp", ddp, ground.model, ground.cluster),)
    return Learned(replace(ground, domain=InputAlone(ddp=ddp, choice=choice), known=known, divided=()))


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(linked_tasks.TASKS), default=list(linked_tasks.TASKS))
    parser.add_argument("--trials", type=int, default=24, help="the trials of each way, half of them for the input")
    parser.add_argument("--folder", type=Path, default=Path("input-together"), help="where results and studies are")
    arguments = parser.parse_args()

    arguments.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(arguments.folder)
    results = {}
    for name in arguments.only:
        done = Path(f"{name}.json")
        if not done.exists():
            found = measured(name, arguments.trials)
            unfinished = done.with_suffix(".part")
            unfinished.write_text(json.dumps(found), encoding="utf-8")
            unfinished.rename(done)
        results[name] = json.loads(done.read_text(encoding="utf-8"))
        results[name]["most_left"] = results[name]["seconds"]["in turn"] / least_seconds(name)
        tell(f"{name}: {results[name]['in_words']}")
    num_wins = sum(one["together_over_in_turn"]["low"] > 1 for one in results.values())
    document = {
        "schema": "autosync.benchmark_input_together/1",
        **this_machine(),
        "num_wins": num_wins,
        "workloads": results,
    }
    return report(document, holds=num_wins >= LEAST_WINS)


def least_seconds(name: str) -> float:
    """Return the time that a worker's link needs for its examples and for the fewest bytes of gradients."""
    folder = Path("autosync-studies", f"{name}-together")
    model, cluster = load_model(str(folder / "model.yaml")), load_cluster(str(folder / "cluster.yaml"))
    assert model.input is not None, "the tasks have datasets"
    num_bytes = model.batch_size * model.input.example_bytes
    gradients = max(term.seconds for term in bound(model, cluster).terms if term.kind == "node_in")
    return num_bytes / min(node.bandwidth_in for node in cluster.nodes if node.role == "worker") + gradients


def measured(name: str, num_trials: int) -> dict[str, Any]:
    """Tune a workload in both ways and compare the winners."""
    Path("cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    cluster = load_cluster("cluster.yaml")
    target = f"{linked_tasks.__file__}:{name}"
    if not Path("files", name).exists():
        Path("files").mkdir(exist_ok=True)
        write_shards(
            Path("files", name),
            num_shards=linked_tasks.NUM_SHARDS,
            num_samples=NUM_SAMPLES,
            num_bytes=linked_tasks.EXAMPLE_BYTES[name],
        )
    with serving(cluster, Path("files", name)):
        options: dict[str, Any] = {"model": target, "cluster": "cluster.yaml"}
        half = num_trials // 2
        together = kept_study(f"{name}-together", **options, num_trials=num_trials)
        first = kept_study(f"{name}-input", **options, num_trials=half, proposer=input_alone)
        settings = fastest_input(first)
        proposer = functools.partial(messages_alone, settings)
        then = kept_study(f"{name}-messages", **options, num_trials=num_trials - half, proposer=proposer)
        return compared(target, together, then, cluster) | {"input_first": dataclasses.asdict(settings)}


@contextlib.contextmanager
def serving(cluster: ClusterSpec, files: Path) -> Iterator[None]:
    """Serve the files in the testbed's store and on this machine, and name both servers to tasks."""
    bed = testbed.up(cluster)
    command = (*bed.enter("store"), "--", sys.executable, Path(__file__).with_name("store.py"), files, str(PORT))
    store = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL)
    try:
        with limited_server(files) as here:
            os.environ["BENCHMARK_STORE_HERE"] = here
            os.environ["BENCHMARK_STORE"] = f"http://{TestbedLauncher().addresses(cluster)['store']}:{PORT}"
            wait_for(bed, next(files.glob("*.tar")).name)
            yield
    finally:
        store.terminate()
        store.wait()
        bed.close()


def wait_for(bed: testbed.Testbed, file: str) -> None:
    """Wait until a host of the testbed gets a file from its store."""
    request = (
        f"import urllib.request as u; u.urlopen(u.Request('{os.environ['BENCHMARK_STORE']}/{file}', "
        "headers={'Range': 'bytes=0-9'}), timeout=2).read()"
    )
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        words = list(map(str, (*bed.enter("host-0"), "--", sys.executable, "-c", request)))
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.3)
    raise OperationError("the store of the testbed does not answer")


def fastest_input(study: Mapping[str, Any]) -> InputSettings:
    """Return the settings that were fastest in the proof of a search of input settings alone."""
    usual = InputSettings()
    # The proof measures the best preset, too, whose messages are others.
    alone = [one for one in study["contests"] if one["role"] in ("default", "finalist")]
    fastest = min(alone, key=lambda one: one["seconds"]["value"])
    found = {one.strategy_id: one for one in read_study(study["folder"])}
    record = found.get(fastest["strategy_id"])
    return usual if record is None or record.strategy is None else strategy_of(record).input or usual


def compared(
    target: str, together: Mapping[str, Any], in_turn: Mapping[str, Any], cluster: ClusterSpec
) -> dict[str, Any]:
    """Measure both winners and stock DDP in turn."""
    studies = {"in turn": in_turn, "together": together}
    contestants = [Contestant(name=name, bundle=Path(one["folder"], "best.yaml")) for name, one in studies.items()]
    model = load_model(str(Path(together["folder"], "model.yaml")))
    with TrialService(target=target, model=model, cluster=cluster, folder=Path("ranks"), seed=1) as service:
        found = compare(service, [*contestants, Contestant(name="stock DDP")], design=DESIGN)
    ratio = next(one for one in found.ratios if one.name == "together")
    return {
        "seconds": {name: one.median_seconds for name, one in found.measurements.items()},
        "cpu_share": {name: one.cpu_share for name, one in found.measurements.items()},
        "together_over_in_turn": dataclasses.asdict(ratio.speedup),
        "in_words": str(ratio),
        "winners": {name: {"in_words": one["winner"], "loader": one["loader"]} for name, one in studies.items()},
    }


if __name__ == "__main__":
    run(main)
