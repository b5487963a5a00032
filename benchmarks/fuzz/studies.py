"""Study folders, journals, and names of task files.

A study may come from any source. When it is exported, resumed or replayed, or when its bundle is shown, drawn or
launched, nothing in it may run, and no file outside its folder may be written.
"""

from __future__ import annotations

import importlib
import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna

from autosync import documents
from autosync.errors import InputError
from autosync.jsonio import write_json
from autosync.plan.bundling import bundled
from autosync.search.candidates import candidate_of
from autosync.search.study import Study, begin_study, resume_study
from autosync.search.study_folder import StudyFolder, StudySettings
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import save_bundle
from autosync.strategy.files import parse_strategy
from benchmarks.fuzz.commands import command
from benchmarks.fuzz.damaged_datasets import CLUSTER, MODEL, records
from benchmarks.fuzz.kinds import Attempt, Maker
from benchmarks.fuzz.worker import CANARY
from tests.helpers.damaged_files import damaged, damaged_lines, hostile_json, lead_astray
from tests.helpers.mutations import mutations

TASK = f"""\
import os
open(os.environ["{CANARY}"], "w").close()
def task():
    raise SystemExit(7)
"""
"""A task that creates a file, which shows that the task was run."""
MAX_MUTATED = 2**20
YAML_CODE = f'!!python/object/apply:os.system ["touch ${CANARY}"]\n'
PICKLE = b'\x80\x04\x95\x24\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x06system\x93\x8c\x0etouch "$C" \x85R.'


def study_folder(path: Path) -> StudyFolder:
    """Return a study with everything: trials of every kind, waiting ones, a bundle, a summary, logs."""
    folder = StudyFolder(path)
    settings = StudySettings(name="fuzz", task="task.py", cluster="cluster.yaml", seed=1, prior="shipped")
    good = records()
    with begin_study(folder, MODEL, CLUSTER, settings) as study:
        _tell(study, good)
    folder.logs.mkdir()
    (folder.logs / "rank-0.log").write_text("started\n", encoding="utf-8")
    strategy = parse_strategy(documents.without_file(dict(good[0].strategy or {})))
    save_bundle(folder.best, bundled(strategy, MODEL, CLUSTER))
    write_json(folder.summary, {"schema": "autosync.summary/1", "study": "fuzz", "winner": {"name": "x"}})
    (path / "task.py").write_text(TASK, encoding="utf-8")
    (path / "autosync_hooks.py").write_text(TASK, encoding="utf-8")
    return folder


def _tell(study: Study, good: Sequence[object]) -> None:
    candidates = [candidate_of(record) for record in records()[:4]]
    study.enqueue(candidates)
    for record in records()[:3]:
        asked = study.ask()
        assert asked is not None, "it waits"
        study.tell(_numbered(record, asked.number))
    assert len(good) >= 4, "there are records of every kind"
    begun = study.begin_for_proof(candidates[3])
    study.tell(_numbered(records()[4], begun.number))


def _numbered(record: object, number: int) -> object:
    from dataclasses import replace

    return replace(record, study="fuzz", trial=number)  # type: ignore[type-var]


def studies(_kind: str, originals: Path) -> Maker:
    """Return a maker of study folders with damage anywhere."""
    study_folder(originals / "study")
    study_folder(originals / "other")
    good = (originals / "study" / "journal.log").read_bytes().splitlines(keepends=True)

    def make(rng: random.Random, box: Path) -> Attempt:
        path = box / "study"
        shutil.copytree(originals / "study", path)
        for _ in range(rng.choice((1, 1, 1, 2))):
            _damage_one(path, box.parent / "victim", good, rng)
        return _reading(path, rng)

    return make


def _damage_one(path: Path, outside: Path, others: Sequence[bytes], rng: random.Random) -> None:
    names = ("study.json", "study.json", "journal.log", "model.yaml", "cluster.yaml", "best.yaml", "summary.json")
    file = path / rng.choice((*names, "lock", "logs"))
    if file.name == "logs" and file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
        file.touch()
        lead_astray(file, outside, rng)
        return
    if not file.is_file() or file.is_symlink() or file.stat().st_size > MAX_MUTATED:
        return
    raw = file.read_bytes()
    match rng.randrange(8):
        case 0:
            lead_astray(file, outside, rng)
        case 1:
            file.write_bytes(rng.choice(others))
        case 2:
            file.write_bytes(damaged(raw, rng))
        case 3 if file.suffix == ".yaml":
            file.write_bytes(mutations(raw.decode("utf-8", "replace"), rng).encode("utf-8", "surrogatepass"))
        case 4:
            payload = rng.choice((YAML_CODE.encode(), PICKLE, TASK.encode()))
            file.write_bytes(rng.choice((payload, raw + payload, raw[:20] + payload + raw[20:])))
        case _ if file.name == "journal.log":
            file.write_bytes(damaged_lines(raw, rng, others=others))
        case _ if file.name == "study.json" and rng.random() < 0.3:
            _point_elsewhere(file, outside, rng)
        case _:
            file.write_bytes(hostile_json(_plain(file), rng))


def _plain(file: Path) -> object:
    """Return the contents of a file; empty if it was damaged before."""
    try:
        return documents.read_document(file).value if file.suffix == ".yaml" else json.loads(file.read_bytes())
    except (InputError, ValueError, RecursionError):
        return {}


def _point_elsewhere(file: Path, outside: Path, rng: random.Random) -> None:
    """Write settings that name files, databases and programs that a reader of the study must not use."""
    settings = _plain(file)
    if not isinstance(settings, dict):
        return
    field, value = rng.choice(
        (
            ("task", str(file.with_name("task.py"))),
            ("task", "task.py:task"),
            ("task", "../victim.py"),
            ("storage", f"journal:{outside}"),
            ("storage", f"sqlite:///{outside}"),
            ("storage", f"sqlite:///{outside.with_name('new.db')}"),
            ("storage", "sqlite://"),
            ("storage", "journal:/dev/zero"),
            ("storage", "postgresql://u:p@127.0.0.1:1/x"),
            ("storage", "nothing+at+all://x"),
            ("storage", ""),
            ("prior", str(outside)),
            ("prior", "/dev/zero"),
            ("replay", str(outside)),
            ("replay", "."),
            ("simulator", "os:system"),
            ("proposer", "task:task"),
            ("name", "../../x"),
            ("cluster", "../x"),
        )
    )
    settings[field] = value
    file.write_text(json.dumps(settings), encoding="utf-8")


def _reading(path: Path, rng: random.Random) -> Attempt:
    best, out = str(path / "best.yaml"), path.parent / "out"
    asked: Sequence[Callable[[], str]] = (
        lambda: command(["export", str(path), "-o", f"{out}/records.csv"]),
        lambda: command(["export", str(path), "-o", f"{out}/records.jsonl", "--skip-unreadable", "--json"]),
        lambda: command(["dataset", "validate", str(path)]),
        lambda: command(["dataset", "stats", str(path), "--json"]),
        lambda: command(["tune", "--resume", str(path), "--dry-run"]),
        lambda: command(["tune", "--resume", str(path), "--dry-run", "--json"]),
        lambda: command(["tune", "--replay", str(path), "--dry-run", "--proposer", "random"]),
        lambda: _resumed(path),
        lambda: _resumed(path),
        lambda: command(["strategy", "show", best, "--json"]),
        lambda: command(["emit", best, "--to", "ddp"]),
        lambda: command(["draw", "plan", best, "-o", f"{out}/plan.svg"]),
        lambda: command(["launch", best, "--dry-run", "--", "train.py"]),
        lambda: command(["cluster", "show", str(path / "cluster.yaml")]),
        lambda: command(
            ["strategy", "build", "ddp", str(path / "model.yaml"), "--cluster", str(path / "cluster.yaml")]
        ),
    )
    return rng.choice(asked)


def _resumed(path: Path) -> str:
    """Open a study as `tune --resume` does after its checks, and read everything from it."""
    folder = StudyFolder(path)
    if folder.links:
        # The command line asks about these links before it opens anything.
        raise InputError("it has links that lead elsewhere", rule="--trust")
    with resume_study(folder, load_model(str(folder.model)), load_cluster(str(folder.cluster))) as study:
        study.history()
        study.searched()
        study.for_proof()
        study.taken()
        study.num_under_way()
        study.ask()
    return "taken"


def journals(_kind: str, originals: Path) -> Maker:
    """Return a maker of journals with lost, doubled, exchanged and foreign lines, or with other values in them."""
    study_folder(originals / "study")
    strangers = _strange_journal(originals / "strange.log")
    raw = (originals / "study" / "journal.log").read_bytes()

    def make(rng: random.Random, box: Path) -> Attempt:
        path = box / "study"
        shutil.copytree(originals / "study", path)
        (path / "journal.log").write_bytes(damaged_lines(raw, rng, others=strangers))
        return rng.choice(
            (
                lambda: _resumed(path),
                lambda: command(["export", str(path), "-o", f"{box}/out/records.csv", "--skip-unreadable"]),
                lambda: command(["dataset", "stats", str(path), "--json"]),
            )
        )

    return make


def _strange_journal(path: Path) -> list[bytes]:
    """Return lines of Optuna that no study of ours has: parameters, intermediate values, attributes, deletions."""
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(study_name="other", storage=storage, directions=["minimize", "maximize"])
    study.enqueue_trial({"x": 1.5})
    trial = study.ask()
    trial.suggest_float("x", 0, 1e9, log=False)
    trial.suggest_categorical("kind", ["a", "b"])
    trial.set_user_attr("record", {"schema": "autosync.record/1"})
    study.tell(trial, [1.0, 2.0])
    one = optuna.create_study(study_name="one", storage=storage)
    begun = one.ask()
    begun.report(0.5, 10**9)
    one.tell(begun, state=optuna.trial.TrialState.PRUNED)
    optuna.delete_study(study_name="one", storage=storage)
    lines = path.read_bytes().splitlines(keepends=True)
    others = [{"op_code": code, "worker_id": "x"} for code in (-1, 3, 10, 11, 99, 2**70, "0", None, 1.5, [])]
    return [*lines, *(json.dumps(other).encode() + b"\n" for other in others)]


def task_names(_kind: str, originals: Path) -> Maker:
    """Return a maker of task names: of missing files, of odd files, or with names that are not names of functions."""
    # Once and here: loading the modules for profiling, and compiling the simulators, would count for an input.
    importlib.import_module("torch")
    command(["simulate", "ddp", "--model", "resnet50", "--cluster", "2-hosts"])
    del originals
    files = ("task.py", "odd name.py", "-x.py", "täsk.py", "a.b.py", ".py", "x:y.py", "new\nline.py", "\x1b[1m.py")
    names = ("", ":task", ":", ":__import__('os').system('x')", "::", ":task:task", ":a.b", ":\0", ":" + "x" * 5000)
    outside = ("/dev/zero.py", "../../x.py", "x" * 5000 + ".py", "\0.py", "", ".", "~/x.py", "model.yaml@x", "@x4")

    def make(rng: random.Random, box: Path) -> Attempt:
        name = rng.choice(files)
        file = box / name
        text = rng.choice(
            ("", "def task(:\n", "task = 1\n", "raise KeyError\n", "import sys\nsys.exit(3)\n", "\0", "# é")
        )
        file.write_bytes(damaged(text.encode(), rng) if rng.random() < 0.3 else text.encode("latin-1"))
        if rng.random() < 0.2:
            lead_astray(file, box.parent / "victim", rng)
        target = rng.choice(outside) if rng.random() < 0.3 else name + rng.choice(names)
        if rng.random() < 0.2:
            target = mutations(target, rng)
        target = (
            target.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") if target.isascii() else target
        )
        return rng.choice(
            (
                lambda: command(["strategy", "build", "ddp", "--cluster", "2-hosts", "--", target]),
                lambda: command(["tune", "--cluster", "local-2", "--dry-run", "--", target]),
                lambda: command(["profile", "-o", "out.yaml", "--", target]),
                lambda: command(["simulate", "ddp", "--model", target, "--cluster", "2-hosts"]),
            )
        )

    return make
