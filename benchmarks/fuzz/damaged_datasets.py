"""Damaged datasets of every form: flipped bits, contents of other files, mutated lines, links, pipes and odd names.

Reading a damaged dataset must only return records that were written. An error must name the damaged file. All output
must be in the place that was asked for.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autosync.datasets import schema
from autosync.datasets.autodist_folder import write_autodist_folder
from autosync.datasets.dataset import Dataset
from autosync.datasets.export import export
from autosync.datasets.facts import cluster_spec, model_spec, plan_facts
from autosync.datasets.parquet_folder import pack
from autosync.datasets.schema import Measurement, Record
from autosync.datasets.store import RecordStore
from autosync.errors import InputError
from autosync.plan.lowering import lower
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import dump_strategy
from autosync.strategy.space import Space
from benchmarks.fuzz.commands import captured, judge
from benchmarks.fuzz.kinds import Attempt, Failure, Maker
from tests.helpers.damaged_files import damaged, damaged_lines

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Damaged:
    """The damage to a dataset: the file (None if all are intact), and whether its records may have changed."""

    file: Path | None
    may_change: bool = False


def records() -> list[Record]:
    """Return records of all kinds: measured and failed, with a strategy and without."""
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
    failed = replace(
        found[0], trial=4, measurement=None, failure=schema.Failure(kind="timeout", message="no, answer\n")
    )
    stock = replace(found[0], trial=5, origin="baseline:torch_ddp", strategy=None, strategy_id=None, plan=None)
    return [*found, failed, stock]


def write_originals(folder: Path) -> None:
    """Write the good dataset in every form."""
    good = records()
    for file_format in ("parquet", "csv", "jsonl"):
        export(good, folder / PLACES[file_format])
    pack(good, SPECS, folder / PLACES["packed"])
    store = RecordStore(folder / PLACES["store"])
    for spec in SPECS:
        store.add_spec(spec)
    store.extend(good)
    write_autodist_folder(good, SPECS, folder / PLACES["autodist"])


def damage(kind: str, folder: Path, rng: random.Random) -> _Damaged:
    """Damage the dataset of a kind."""
    place = folder / PLACES[kind]
    if kind == "names":
        hostile = {name: rng.choice(HOSTILE) for name in ("study", "origin", "model_name", "cluster_name")}
        export([replace(record, model_spec=None, cluster_spec=None, **hostile) for record in records()], place)
        return _Damaged(file=None)
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    file = rng.choice(files)
    if kind == "autodist" and rng.random() < 0.3:
        return _Damaged(file=_lead_elsewhere(file, folder, rng))
    raw = bytearray(file.read_bytes())
    if file.suffix in {".jsonl", ".json"} and rng.random() < 0.6:
        file.write_bytes(damaged_lines(bytes(raw), rng))
        return _Damaged(file=file, may_change=True)
    file.write_bytes(rng.choice(DAMAGES)(raw, rng, files))
    return _Damaged(file=file)


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


def _damaged(raw: bytearray, rng: random.Random, _files: Sequence[Path]) -> bytes:
    return damaged(bytes(raw), rng)


def _another_schema(raw: bytearray, rng: random.Random, _files: Sequence[Path]) -> bytes:
    new = rng.choice((b"autosync.record/9", b"autosync.model/1", b"somebody.record/1", b"autosync.record/-1"))
    return bytes(raw.replace(b"autosync.record/1", new))


def _another_file(_raw: bytearray, rng: random.Random, files: Sequence[Path]) -> bytes:
    others = [path.read_bytes() for path in files]
    return rng.choice([*others, b"", b"null", b"[" * 100_000, b"\xff\xfe", b"PAR1PAR1", b'{"a": 1}\n'])


DAMAGES = (_damaged, _damaged, _damaged, _another_schema, _another_file)


def maker(name: str, originals: Path) -> Maker:
    """Return a maker of damaged datasets of one form, with a command for each."""
    kind = name.removeprefix("dataset_")
    write_originals(originals)
    good = records()

    def make(rng: random.Random, box: Path) -> Attempt:
        folder = box / "inside"
        shutil.copytree(originals, folder)
        what = damage(kind, folder, rng)
        (folder / "out").mkdir()
        arguments = rng.choice(commands(kind, folder))
        before = _tree(folder)

        def attempt() -> str:
            code, out, err = captured(arguments)
            outcome = judge(arguments, code, out, err)
            _check_names(arguments, err, what.file)
            if _tree(folder) != before:
                raise Failure(f"{arguments}: something is written elsewhere than it was told to")
            written = folder / "out" / "merged"
            if (written / "records.parquet").is_file() and kind != "names" and not what.may_change:
                strange = [record for record in Dataset(written).records(_raise) if record not in good]
                if strange:
                    raise Failure(f"a record that was never written: trial {strange[0].trial} of {strange[0].study!r}")
            return outcome

        return attempt

    return make


def commands(kind: str, folder: Path) -> list[list[str]]:
    """Return the commands to run on the damaged dataset. They may only write to `out`."""
    place, out = str(folder / PLACES[kind]), str(folder / "out")
    return [
        ["dataset", "validate", place],
        ["dataset", "stats", place, "--json", "--picture", f"{out}/picture.svg"],
        ["dataset", "merge", place, "-o", f"{out}/merged", "--skip-unreadable"],
        ["dataset", "import", place, "-o", f"{out}/imported"],
        ["dataset", "split", place, "--by", "model", "-o", f"{out}/models", "--skip-unreadable"],
        ["export", place, "--format", "autodist", "-o", f"{out}/autodist", "--skip-unreadable"],
        ["export", place, "-o", f"{out}/records.csv", "--skip-unreadable"],
    ]


def _check_names(command: Sequence[str], err: str, damaged: Path | None) -> None:
    """Raise unless the first error names the damaged file, or a folder that contains it."""
    shown = [line for line in err.split("\n") if line.startswith(("error: ", "left out: "))]
    # Hostile names are escaped for terminals.
    if damaged is None or not damaged.name.isprintable() or not shown or damaged.name in shown[0]:
        return
    is_of_all = any(word in shown[0] for word in ("holds no records", "specs that records name", "is not there"))
    if not is_of_all and str(damaged.parent.parent) not in shown[0]:
        raise Failure(f"{list(command)}: {damaged} is not named: {shown[0][:500]!r}")


def _tree(folder: Path) -> Mapping[str, str]:
    """Return the contents of every file and folder outside `out`."""
    found = {}
    for root, folders, files in os.walk(folder):
        if "out" in folders and Path(root) == folder:
            folders.remove("out")
        for name in (*folders, *files):
            path = Path(root) / name
            is_plain = path.is_file() and not path.is_symlink()
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if is_plain else ""
    return found


def _raise(problem: object) -> None:
    raise InputError(str(problem))
