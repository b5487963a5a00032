"""Mutated files of every kind that users hand in, through the real command line.

    python benchmarks/fuzz_files.py --count 5000 --seed 0 > out.json
    python benchmarks/fuzz_files.py --rerun out.json

Whatever becomes of a file, the command must end within seconds: with exit 0 and nothing on stderr (and, with --json,
one JSON document on stdout), or with exit 2 and nothing on stderr but `error: FILE:LINE: WHAT (RULE)` lines, each at a
line that the file has. Prints one JSON document: for each kind of file how many there were, how they ended, the rules
that were broken most often, and each failure with its file, ready to be run again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autosync import documents
from autosync.cli.main import run
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import dump_cluster, load_cluster, save_cluster, shipped_clusters
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import dump_model, format_model, load_model, save_model
from autosync.strategy.bundle import dump_bundle, save_bundle
from autosync.strategy.files import dump_strategy, save_strategy
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Int8, PowerSGD, Sign, Strategy, TopK
from autosync.strategy.space import Limits, Space
from autosync.strategy.space.limits import ALL_CODECS
from autosync.testing.fuzz import mutations, value_mutations
from autosync.testing.generate import random_cluster, random_model

MAX_SECONDS = 5.0
HANG_SECONDS = 60
MAX_MEMORY_BYTES = 8 * 2**30
MAX_FAILURES = 20

_LINE = re.compile(r"error: (?P<file>\S+?):(?P<line>\d+): (?P<what>.+?) ?\((?P<rule>.+)\)(; .+)?")
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
    """A good file, and what may be asked of it: command lines in which `FILE` stands for it."""

    text: str
    ending: str
    commands: tuple[tuple[str, ...], ...]


@dataclass(slots=True)
class Tally:
    """What became of the files of one kind."""

    exits: Counter[int] = field(default_factory=Counter)
    mistakes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    num_failed: int = 0
    slowest_seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """As the document has it."""
        return {
            "count": self.exits.total(),
            "exits": {str(code): count for code, count in sorted(self.exits.items())},
            "mistakes": self.mistakes.total(),
            "rules": len(self.mistakes),
            "commonest": dict(self.mistakes.most_common(10)),
            "slowest_seconds": round(self.slowest_seconds, 2),
            "failed": self.num_failed,
            "failures": self.failures,
        }


def originals(folder: Path) -> dict[str, list[Original]]:
    """Good files of every kind; those that they need beside them are written into the folder."""
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
    return found


def _contexts(rng: random.Random) -> Iterator[tuple[ModelSpec, ClusterSpec, list[Strategy]]]:
    """Models, clusters and strategies for them: shipped and known ones, and random ones that use all there is."""
    for model_name, cluster_name in (("ncf", "4-hosts-2-servers"), ("vgg16", "6-hosts-3-speeds")):
        model, cluster = load_model(model_name), load_cluster(cluster_name)
        presets = ("ddp", "ps_partitioned", "bytescheduler", "poseidon")
        yield model, cluster, [build_preset(name, model, cluster) for name in presets]
    for _ in range(20):
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
        # A preset that applies to every model.
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
    # Three of four in YAML: that is what people write by hand.
    as_yaml = Original(text=yaml, ending=".yaml", commands=commands)
    return [as_yaml] * 3 + [Original(text=documents.format_json(fields), ending=".json", commands=commands)]


def try_file(raw: bytes, command: Sequence[str], path: Path) -> tuple[int, list[str], float]:
    """Run a command on a file with this content: exit code, broken rules, seconds. A ValueError says what is wrong."""
    path.write_bytes(raw)
    arguments = [str(path) if argument == "FILE" else argument for argument in command]
    start = time.perf_counter()
    code, out, err = _captured(lambda: run(arguments))
    seconds = time.perf_counter() - start
    if seconds > MAX_SECONDS:
        raise ValueError(f"took {seconds:.1f} s")
    if code == 0:
        if err:
            raise ValueError(f"exit 0 with stderr {err[:500]!r}")
        if "--json" in arguments:
            json.loads(out)
        return code, [], seconds
    if code != 2 or out:
        raise ValueError(f"exit {code} with stdout {out[:200]!r} and stderr {err[:500]!r}")
    handed_in = {argument for argument in arguments if Path(argument).suffix in (".yaml", ".yml", ".json")}
    return code, [_rule_of(line, handed_in) for line in err.removesuffix("\n").split("\n")], seconds


def _captured(command: Callable[[], int]) -> tuple[int, str, str]:
    """What a command prints, through streams like those of a terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
    signal.alarm(HANG_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _exit_code(command)
    finally:
        signal.alarm(0)
    texts = []
    for stream in (out, err):
        stream.flush()
        buffer = stream.buffer
        assert isinstance(buffer, io.BytesIO), "made above"
        texts.append(buffer.getvalue().decode("utf-8"))
    return code, texts[0], texts[1]


def _exit_code(command: Callable[[], int]) -> int:
    """The exit code; what leaves the command by another road than its exit code is a mistake of ours."""
    try:
        return command()
    except BaseException as error:
        raise ValueError(f"raised {type(error).__name__}: {error}") from error


def _rule_of(line: str, handed_in: set[str]) -> str:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"no line of the right form: {line[:500]!r}")
    if match["file"] not in handed_in:
        raise ValueError(f"another file than was handed in: {line[:500]!r}")
    raw = Path(match["file"]).read_bytes()
    # The parsers count more line ends than \n.
    num_lines = len(raw.decode("utf-8", "replace").splitlines()) + 1
    if not 1 <= int(match["line"]) <= num_lines:
        raise ValueError(f"a line that the file of {num_lines} lines does not have: {line[:500]!r}")
    if not line.isprintable():
        raise ValueError(f"what a terminal would obey: {line[:500]!r}")
    return match["rule"][:100]


def fuzz(kind: str, files: Sequence[Original], count: int, rng: random.Random, folder: Path) -> Tally:
    """Mutate good files so many times and try each mutant."""
    tally = Tally()
    for _ in range(count):
        original = rng.choice(files)
        raw = _mutant(original, rng).encode("utf-8", "surrogatepass")
        _tried(tally, kind, raw, rng.choice(original.commands), folder / f"{kind}{original.ending}")
    return tally


def _mutant(original: Original, rng: random.Random) -> str:
    """Every other one is mutated as text, the others as what the text holds: those are well-formed and get further."""
    if rng.random() < 0.5:
        return mutations(original.text, rng)
    value = documents.parse_document(original.text, file=f"original{original.ending}").value
    return json.dumps(value_mutations(value, rng), indent=1)


def _tried(tally: Tally, kind: str, raw: bytes, command: Sequence[str], path: Path) -> None:
    try:
        code, rules, seconds = try_file(raw, command, path)
    except ValueError as error:
        tally.exits[-1] += 1
        tally.num_failed += 1
        if tally.num_failed <= MAX_FAILURES:
            # Bytes as characters of the same numbers: JSON has no bytes.
            text = raw.decode("latin-1")
            # The files beside it are made anew for a rerun, in another folder.
            tally.failures.append(
                {
                    "why": str(error),
                    "kind": kind,
                    "command": [argument.replace(f"{path.parent}/", "FOLDER/") for argument in command],
                    "ending": path.suffix,
                    "text": text,
                }
            )
        return
    tally.exits[code] += 1
    tally.mistakes.update(rules)
    tally.slowest_seconds = max(tally.slowest_seconds, seconds)


def rerun(failures: Sequence[Mapping[str, Any]], folder: Path) -> Tally:
    """Try the failures of an earlier run again."""
    originals(folder)
    tally = Tally()
    for failure in failures:
        command = [argument.replace("FOLDER/", f"{folder}/") for argument in failure["command"]]
        path = folder / f"{failure['kind']}{failure['ending']}"
        _tried(tally, failure["kind"], failure["text"].encode("latin-1"), command, path)
    return tally


def _hang(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"no end after {HANG_SECONDS} s")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="how many mutants of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", help="only this kind of file (may be repeated)")
    parser.add_argument("--rerun", type=Path, help="run the failures of an earlier output again")
    arguments = parser.parse_args()
    # A warning would stand on the user's stderr: here it is a failure. So is memory without end.
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _hang)
    os.environ["COLUMNS"] = "100"
    began = time.perf_counter()
    with TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.rerun:
            earlier = json.loads(arguments.rerun.read_text(encoding="utf-8"))["kinds"]
            failures = [failure for tally in earlier.values() for failure in tally["failures"]]
            tallies = {"rerun": rerun(failures, folder)}
        else:
            good = originals(folder)
            tallies = {
                kind: fuzz(kind, files, arguments.count, random.Random(f"{arguments.seed} {kind}"), folder)
                for kind, files in good.items()
                if not arguments.kind or kind in arguments.kind
            }
    failed = sum(tally.num_failed for tally in tallies.values())
    result = {
        "seed": arguments.seed,
        "failed": failed,
        "seconds": round(time.perf_counter() - began, 1),
        "kinds": {kind: tally.plain() for kind, tally in tallies.items()},
    }
    print(json.dumps(result, indent=2))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
