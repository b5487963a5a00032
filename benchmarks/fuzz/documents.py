"""Files that users write by hand, and bundles: clusters, AutoDist's resource specs, models, strategies.

Every mistake must be reported with its file and an existing line.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosync import documents
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import dump_cluster, load_cluster, save_cluster, shipped_clusters
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import dump_model, format_model, load_model, save_model
from autosync.strategy.bundle import dump_bundle, save_bundle
from autosync.strategy.codecs import Int8, PowerSGD, Sign, TopK
from autosync.strategy.files import dump_strategy, save_strategy
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.space.limits import ALL_CODECS
from benchmarks.fuzz.commands import command
from benchmarks.fuzz.kinds import Attempt, Maker
from tests.helpers.damaged_files import damaged, hostile_json
from tests.helpers.mutations import mutations, value_mutations
from tests.helpers.random_specs import random_cluster, random_model

NUM_MADE_UP = 12

_LIMITS = Limits(
    allow=("lossy", "stale"),
    codecs=(*ALL_CODECS, Int8(block=16), TopK(ratio=0.3), PowerSGD(rank=1), Sign(error_feedback=False)),
    slice_bytes=(1024, 65536),
    staleness=(1, 2),
    periods=(2, 3),
    max_parts=6,
    max_priorities=8,
)
_CLUSTER = """\
schema: autosync.cluster/1
name: everything
launcher: ssh
backend: gloo
racks:
  - {name: east, uplink: 10 Gbit/s}
  - {name: west, uplink_out: 5 Gbit/s, uplink_in: 10 Gbit/s}
nodes:
  - name: a
    host: 10.0.0.1
    devices: 4
    bandwidth_out: 1 Gbit/s
    bandwidth_in: 2 Gbit/s
    intra_bandwidth: 25 GB/s
    rack: east
    memory: 16 GB
  - {name: b, count: 2, hosts: [10.0.0.2, 10.0.0.3], devices: 4, bandwidth: 1 Gbit/s, rack: west}
  - {name: s, role: server, devices: 0, bandwidth: 1 Gbit/s}
  - {name: t, role: server, bandwidth: 1 Gbit/s}
alike: [[s, t]]
"""
_RESOURCE_SPECS = (
    """\
nodes:
  - address: 10.0.0.1
    cpus: [0]
    gpus: [0, 1]
    chief: true
    network_bandwidth: 25
  - address: 10.0.0.3
    cpus: [0, 1]
    ssh_config: two
ssh:
  two:
    username: other
    port: 12345
    key_file: /home/other/key.pem
    python_venv: source /home/other/venv/bin/activate
    shared_envs:
      DEBUG: 1
""",
    """\
nodes:
  - address: localhost
    gpus: [0, 1, 2, 3]
""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A good file, with the command lines to run on it; `FILE` stands for it."""

    text: str
    ending: str
    commands: tuple[tuple[str, ...], ...]


def originals(folder: Path, kind: str) -> list[Original]:
    """Return good files of a kind, and write the files that they need into the folder."""
    found: dict[str, list[Original]] = {
        "cluster": list(_clusters()),
        "resource_spec": [Original(text=text, ending=".yml", commands=_shows("cluster")) for text in _RESOURCE_SPECS],
        "model": [],
        "strategy": [],
        "bundle": [],
    }
    for index, (model, cluster, strategies) in enumerate(_contexts(random.Random(0))):
        of_model, of_cluster = folder / f"model-{index}.yaml", folder / f"cluster-{index}.yaml"
        save_model(model, of_model)
        save_cluster(of_cluster, cluster)
        context = ("--model", str(of_model), "--cluster", str(of_cluster))
        for number, strategy in enumerate(strategies):
            of_strategy = folder / f"strategy-{index}-{number}.yaml"
            save_strategy(of_strategy, strategy)
            fields = dump_strategy(strategy)
            commands = (
                *_shows("strategy"),
                *_shows("strategy", *context),
                *_both("strategy", "validate", "FILE", *context),
                ("strategy", "diff", "FILE", str(of_strategy)),
            )
            found["strategy"] += _yaml_and_json(documents.format_yaml(fields), fields, commands)
            found["model"] += _models(model, of_strategy, of_cluster)
            found["bundle"] += _bundles(folder / "bundle.yaml", model, cluster, strategy)
    return found[kind]


def _contexts(rng: random.Random) -> Iterator[tuple[ModelSpec, ClusterSpec, list[Strategy]]]:
    """Yield models, clusters and strategies for them: shipped and known ones, and random ones that use everything."""
    for model_name, cluster_name in (("ncf", "4-hosts-2-servers"), ("vgg16", "6-hosts-3-speeds")):
        model, cluster = load_model(model_name), load_cluster(cluster_name)
        presets = ("ddp", "ps_partitioned", "bytescheduler", "poseidon")
        yield model, cluster, [build_preset(name, model, cluster) for name in presets]
    for _ in range(NUM_MADE_UP):
        model, cluster = random_model(rng), random_cluster(rng)
        space = Space(model=model, cluster=cluster, limits=_LIMITS)
        yield model, cluster, [space.sample(rng) for _ in range(2)]


def _clusters() -> Iterator[Original]:
    texts = [_CLUSTER, *(path.read_text(encoding="utf-8") for path in shipped_clusters().values())]
    yield from (Original(text=text, ending=".yaml", commands=_shows("cluster")) for text in texts)
    for name in shipped_clusters():
        fields = dump_cluster(load_cluster(name))
        yield Original(text=documents.format_json(fields), ending=".json", commands=_shows("cluster"))


def _models(model: ModelSpec, of_strategy: Path, of_cluster: Path) -> list[Original]:
    commands = (
        *_both("strategy", "validate", str(of_strategy), "--model", "FILE", "--cluster", str(of_cluster)),
        # This preset applies to every model.
        *_both("strategy", "build", "ddp", "FILE", "--cluster", str(of_cluster)),
    )
    return _yaml_and_json(format_model(model), dump_model(model), commands)


def _bundles(path: Path, model: ModelSpec, cluster: ClusterSpec, strategy: Strategy) -> list[Original]:
    bundle = bundled(strategy, model, cluster)
    save_bundle(path, bundle)
    commands = (*_shows("strategy"), *_both("strategy", "validate", "FILE"))
    return _yaml_and_json(path.read_text(encoding="utf-8"), dump_bundle(bundle), commands)


def _shows(group: str, *options: str) -> tuple[tuple[str, ...], ...]:
    return _both(group, "show", "FILE", *options)


def _both(*command: str) -> tuple[tuple[str, ...], ...]:
    return command, (*command, "--json")


def _yaml_and_json(yaml: str, fields: Mapping[str, Any], commands: tuple[tuple[str, ...], ...]) -> list[Original]:
    # Three of four are in YAML, which users write by hand.
    as_yaml = Original(text=yaml, ending=".yaml", commands=commands)
    return [as_yaml] * 3 + [Original(text=documents.format_json(fields), ending=".json", commands=commands)]


def maker(kind: str, folder: Path) -> Maker:
    """Return a maker of mutants of the files of a kind."""
    files = originals(folder, kind)

    def make(rng: random.Random, box: Path) -> Attempt:
        original = rng.choice(files)
        path = box / f"{kind}{original.ending}"
        path.write_bytes(_mutant(original, rng))
        arguments = [str(path) if argument == "FILE" else argument for argument in rng.choice(original.commands)]
        handed_in = [argument for argument in arguments if Path(argument).suffix in {".yaml", ".yml", ".json"}]
        return lambda: command(arguments, handed_in=handed_in)

    return make


def _mutant(original: Original, rng: random.Random) -> bytes:
    """Return the file mutated as text, as bytes, or as values.

    A file with mutated values is well-formed, so more of the reader's code sees it.
    """
    what = rng.random()
    if what < 0.4:
        return mutations(original.text, rng).encode("utf-8", "surrogatepass")
    if what < 0.5:
        return damaged(original.text.encode(), rng)
    value = documents.parse_document(original.text, file=f"original{original.ending}").value
    if what < 0.75:
        return json.dumps(value_mutations(value, rng), indent=1).encode()
    return hostile_json(value, rng)
