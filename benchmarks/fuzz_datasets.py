"""Damaged datasets of every form, through the real command line.

    python benchmarks/fuzz_datasets.py --count 1000 --seed 0 > out.json

A good dataset is cut off, has bits flipped, bytes overwritten, another schema or another file's content, links and
pipes in its folders, or names that lead elsewhere; then it is validated, merged, split and exported. A command must end
with exit 0, having read nothing but records that were written, or with exit 2 and `error:` lines of which the first
names the damaged file. What it writes lies where it was told to and nowhere else. Prints one JSON document: of each
kind how the commands ended, and each failure with the seed that makes it again. A crash of the process is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autosync.cli.main import run
from autosync.datasets.export import export
from autosync.datasets.facts import cluster_spec, model_spec, plan_facts
from autosync.datasets.layout import write_layout
from autosync.datasets.packed import pack
from autosync.datasets.schema import Failure, Measurement, Record
from autosync.datasets.sources import Source
from autosync.datasets.store import Store
from autosync.errors import InputError
from autosync.plan.lowering import lower
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import dump_strategy
from autosync.strategy.space import Space

HANG_SECONDS = 60
MAX_MEMORY_BYTES = 8 * 2**30
MODEL, CLUSTER = load_model("ncf"), load_cluster("2-hosts")
SPECS = (model_spec(MODEL), cluster_spec(CLUSTER))
HOSTILE = (
    "../../outside",
    "/outside",
    "..",
    ".",
    "a/../../b",
    "x" * 5000,
    "-rf",
    "line\nbreak",
    "\x1b[31mred",
    "\u202eleft",
    ".hidden",
    "~root",
    "con",
    'comma, "quote"',
    "%2e%2e%2f",
    "$(touch outside)",
    "\\..\\outside",
)
PLACES = {
    "parquet": "records.parquet",
    "csv": "records.csv",
    "jsonl": "records.jsonl",
    "packed": "packed",
    "store": "store",
    "autodist": "release",
    "names": "names.jsonl",
}


def records() -> list[Record]:
    """Records of all kinds: measured and failed, with a strategy and without."""
    rng = random.Random(0)
    space = Space(model=MODEL, cluster=CLUSTER)
    found = []
    for number in range(4):
        strategy = space.sample(rng)
        found.append(
            Record(
                study="fuzz",
                trial=number,
                origin="sampled",
                model_name=MODEL.name,
                model_fingerprint=SPECS[0].fingerprint,
                cluster_name=CLUSTER.name,
                cluster_fingerprint=SPECS[1].fingerprint,
                model_spec=SPECS[0].spec_id,
                cluster_spec=SPECS[1].spec_id,
                strategy=dump_strategy(strategy),
                strategy_id=strategy_id(strategy, MODEL, CLUSTER),
                plan=plan_facts(lower(strategy, MODEL, CLUSTER), CLUSTER),
                classes=("exact",),
                measurement=Measurement(
                    step_seconds=((0.5, 0.4, 0.6), (0.45, 0.41, 0.59)),
                    median_seconds=0.5,
                    low_seconds=0.4,
                    high_seconds=0.6,
                    num_warmup_steps=4,
                    peak_memory_bytes=(10**8, 10**8),
                    flags=((), ("noisy",), ("noisy",), ("busy_cpu",))[number],
                ),
                environment={"torch": "2.13.0", "backend": "gloo"},
                compute="replayed",
                network="emulated",
                started="2026-01-31T12:00:00+00:00",
            )
        )
    failed = replace(found[0], trial=4, measurement=None, failure=Failure(kind="timeout", message="no, answer\n"))
    stock = replace(found[0], trial=5, origin="baseline:torch_ddp", strategy=None, strategy_id=None, plan=None)
    return [*found, failed, stock]


def write_originals(folder: Path) -> None:
    """The good dataset in every form."""
    good = records()
    for file_format in ("parquet", "csv", "jsonl"):
        export(good, folder / PLACES[file_format])
    pack(good, SPECS, folder / PLACES["packed"])
    store = Store(folder / PLACES["store"])
    for spec in SPECS:
        store.add_spec(spec)
    store.extend(good)
    write_layout(good, SPECS, folder / PLACES["autodist"])


def damage(kind: str, folder: Path, rng: random.Random) -> Path | None:
    """Do something bad to the dataset of a kind; which file it is in, None where the file is whole."""
    place = folder / PLACES[kind]
    if kind == "names":
        hostile = {name: rng.choice(HOSTILE) for name in ("study", "origin", "model_name", "cluster_name")}
        export([replace(record, model_spec=None, cluster_spec=None, **hostile) for record in records()], place)
        return None
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    file = rng.choice(files)
    if kind == "autodist" and rng.random() < 0.3:
        return _lead_elsewhere(file, folder, rng)
    raw = bytearray(file.read_bytes())
    file.write_bytes(rng.choice(DAMAGES)(raw, rng, files))
    return file


def _lead_elsewhere(file: Path, folder: Path, rng: random.Random) -> Path | None:
    """Put something into a folder that a reader must not follow or open."""
    secret = folder / "secret"
    secret.write_text("{}", encoding="utf-8")
    what = rng.randrange(4)
    if what == 0:
        file.unlink()
        file.symlink_to(rng.choice((secret, Path("/dev/zero"), Path("../../../../../../etc/passwd"))))
        return file
    if what == 1:
        file.unlink()
        os.mkfifo(file)
        return file
    if what == 2:
        file.unlink()
        file.mkdir()
        return file
    name = rng.choice([name for name in HOSTILE if "/" not in name and name not in {".", ".."} and len(name) < 200])
    link = file.parents[rng.randrange(1, 3)] / name
    link.symlink_to(rng.choice((folder, Path("/"))))
    return link


def _cut(raw: bytearray, rng: random.Random, _files: Sequence[Path]) -> bytes:
    return bytes(raw[: rng.randrange(len(raw))])


def _flip(raw: bytearray, rng: random.Random, _files: Sequence[Path]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def _flip_at_end(raw: bytearray, rng: random.Random, _files: Sequence[Path]) -> bytes:
    """Where Parquet says what is where."""
    raw[-rng.randrange(1, min(len(raw), 4000))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def _overwrite(raw: bytearray, rng: random.Random, _files: Sequence[Path]) -> bytes:
    start = rng.randrange(len(raw))
    end = min(len(raw), start + rng.choice((1, 8, 100, 1000)))
    raw[start:end] = rng.choice((b"\0", b"\xff", b"[", b'"')) * (end - start)
    return bytes(raw)


def _leave_out(raw: bytearray, rng: random.Random, _files: Sequence[Path]) -> bytes:
    start = rng.randrange(len(raw))
    del raw[start : start + rng.choice((1, 10, 500))]
    return bytes(raw)


def _another_schema(raw: bytearray, rng: random.Random, _files: Sequence[Path]) -> bytes:
    new = rng.choice((b"autosync.record/9", b"autosync.model/1", b"somebody.record/1", b"autosync.record/-1"))
    return bytes(raw.replace(b"autosync.record/1", new))


def _another_file(_raw: bytearray, rng: random.Random, files: Sequence[Path]) -> bytes:
    others = [path.read_bytes() for path in files]
    return rng.choice([*others, b"", b"null", b"[" * 100_000, b"\xff\xfe", b"PAR1PAR1", b'{"a": 1}\n'])


DAMAGES = (_cut, _flip, _flip, _flip_at_end, _overwrite, _leave_out, _another_schema, _another_file)


def commands(kind: str, folder: Path) -> Iterator[list[str]]:
    """What is asked of the damaged dataset. Nothing but `out` is to be written to."""
    place, out = str(folder / PLACES[kind]), str(folder / "out")
    yield ["dataset", "validate", place]
    yield ["dataset", "stats", place, "--json", "--picture", f"{out}/picture.svg"]
    yield ["dataset", "merge", place, "-o", f"{out}/merged", "--skip-unreadable"]
    yield ["dataset", "import", place, "-o", f"{out}/imported"]
    yield ["dataset", "split", place, "--by", "model", "-o", f"{out}/models", "--skip-unreadable"]
    yield ["export", place, "--format", "autodist", "-o", f"{out}/autodist", "--skip-unreadable"]
    yield ["export", place, "-o", f"{out}/records.csv", "--skip-unreadable"]


def try_one(kind: str, seed: str, originals: Path, sandbox: Path) -> Counter[int]:
    """Damage a dataset and ask everything of it: the exit codes. A ValueError says what was wrong."""
    folder = sandbox / "inside"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(originals, folder)
    damaged = damage(kind, folder, random.Random(seed))
    (folder / "out").mkdir()
    before = tree(sandbox)
    exits: Counter[int] = Counter()
    for command in commands(kind, folder):
        code, err = captured(command)
        exits[code] += 1
        check(command, code, err, damaged)
        if tree(sandbox) != before:
            raise ValueError(f"{command}: something is written elsewhere than it was told to")
    written = folder / "out" / "merged"
    if (written / "records.parquet").is_file() and kind != "names":
        strange = [record for record in Source(written).records(_raise) if record not in records()]
        if strange:
            raise ValueError(f"a record that nobody wrote: trial {strange[0].trial} of {strange[0].study!r}")
    return exits


def check(command: Sequence[str], code: int, err: str, damaged: Path | None) -> None:
    """Whether a command ended as it may."""
    if code not in {0, 2}:
        raise ValueError(f"{command}: exit {code} with stderr {err[:500]!r}")
    shown = [line for line in err.split("\n") if line.startswith(("error: ", "left out: "))]
    if code == 2 and not any(line.startswith("error: ") for line in shown):
        raise ValueError(f"{command}: exit 2 with stderr {err[:500]!r}")
    # Names of hostile folders are shown so that no terminal obeys them.
    if damaged is not None and damaged.name.isprintable() and shown and damaged.name not in shown[0]:
        is_of_all = any(word in shown[0] for word in ("holds no records", "specs that records name", "is not there"))
        if not is_of_all and str(damaged.parent.parent) not in shown[0]:
            raise ValueError(f"{command}: {damaged} is not named: {shown[0][:500]!r}")
    for line in shown:
        if not line.isprintable():
            raise ValueError(f"{command}: what a terminal would obey: {line[:500]!r}")


def captured(arguments: Sequence[str]) -> tuple[int, str]:
    """What a command ends with and says on stderr."""
    out, err = io.StringIO(), io.StringIO()
    signal.alarm(HANG_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(list(arguments))
    except BaseException as error:
        raise ValueError(f"{arguments}: raised {type(error).__name__}: {error}") from error
    finally:
        signal.alarm(0)
    return code, err.getvalue()


def tree(folder: Path) -> Mapping[str, str]:
    """Every file and folder but those in `out`, with what is in it."""
    found = {}
    for root, folders, files in os.walk(folder):
        if "out" in folders and Path(root).name == "inside":
            folders.remove("out")
        for name in (*folders, *files):
            path = Path(root) / name
            is_plain = path.is_file() and not path.is_symlink()
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if is_plain else ""
    return found


def _raise(problem: object) -> None:
    raise InputError(str(problem))


def work(cases: Sequence[tuple[str, str]]) -> None:
    """Try cases one after another, a line of JSON for each, in this process."""
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _hang)
    with TemporaryDirectory() as originals, TemporaryDirectory() as sandbox:
        write_originals(Path(originals))
        for kind, seed in cases:
            try:
                exits = try_one(kind, seed, Path(originals), Path(sandbox))
                answer: dict[str, Any] = {"exits": {str(code): count for code, count in exits.items()}}
            except ValueError as error:
                answer = {"why": str(error)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


def _hang(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"no end after {HANG_SECONDS} s")


def in_processes(cases: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """The answers of all cases; where a process dies, the case that it was at has failed and another goes on."""
    left = list(cases)
    while left:
        script = [sys.executable, __file__, "--cases", json.dumps(left)]
        with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None, "asked for"
            for line in process.stdout:
                yield json.loads(line)
                left.pop(0)
        if left:
            yield {"why": f"the process died with {process.returncode}"}
            left.pop(0)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="how many damaged datasets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=list(PLACES), help="only this kind (may be repeated)")
    parser.add_argument("--cases", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cases:
        work([(kind, seed) for kind, seed in options.cases])
        return 0
    kinds = options.kind or list(PLACES)
    cases = [(kinds[number % len(kinds)], f"{options.seed}/{number}") for number in range(options.count)]
    began = time.perf_counter()
    exits: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    failures = []
    for (kind, seed), answer in zip(cases, in_processes(cases), strict=True):
        exits[kind].update(answer.get("exits", {}))
        if "why" in answer:
            failures.append({"kind": kind, "seed": seed, "why": answer["why"]})
    document = {
        "seed": options.seed,
        "count": len(cases),
        "failed": len(failures),
        "seconds": round(time.perf_counter() - began, 1),
        "exits": exits,
        "failures": failures[:20],
    }
    print(json.dumps(document, indent=2))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
