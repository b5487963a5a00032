"""Breaks the behaviours that DDP's users expect, one at a time, and checks that a test notices.

    python tools/mutations.py [--only FEATURE ...] [--list]

The tree is copied to a scratch folder. There, one snippet of the product's code after the other is replaced, and the
tests that should notice are run. Before that they run without a fault and must pass, because a test that always fails
notices nothing. It is an error if a snippet is not found exactly once. stdout gets one JSON document (feature,
mutation, noticed or survived), and stderr the same as a table while it runs. The exit status is 0 if all were noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parent))
from mutations_table import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 1200
TEST_LIMIT_SECONDS = 300

SCRIPT_TESTS = (
    "tests/runtime/test_expectations.py::test_a_script_comes_out_as_under_ddp",
    "tests/runtime/test_expectations.py::test_a_script_is_refused_by_name",
)

Verdict = Literal["noticed", "survived"]


class Scratch:
    """A copy of the tree, in which the package is imported as `autosync`."""

    def __init__(self, folder: Path) -> None:
        self._imports = folder / "imports"
        self._folder = folder
        # The last output of pytest.
        self.said = ""
        unread = shutil.ignore_patterns("__pycache__", "*.parquet")
        shutil.copytree(ROOT / "autosync", self._imports / "autosync", ignore=unread)
        for part in ("cli", "simulators", "datasets", "configs"):
            shutil.copytree(ROOT / part, self._imports / "autosync" / part, ignore=unread)
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=unread)
        shutil.copy(ROOT / "pyproject.toml", folder)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(self._imports),
            "PYTHONSAFEPATH": "1",
            # If a file changes twice within a second, Python would use the first compiled version again.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._check()

    def _check(self) -> None:
        """Check that the tests import the copy, not an installed package."""
        command = (sys.executable, "-c", "import autosync; print(autosync.__file__)")
        found = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True)
        if not found.stdout.startswith(str(self._imports)):
            raise SystemExit(f"tests would run {found.stdout.strip()}, not the copy in {self._imports}")

    def file(self, mutation: Mutation) -> Path:
        return self._imports / "autosync" / mutation.file

    def test(self, scripts: Iterable[str], tests: Iterable[str]) -> bool:
        """Return whether the tests pass. Raise if they do not run."""
        return all(self._passes(selected, chosen) for selected, chosen in _selections(scripts, tests))

    def _passes(self, tests: Sequence[str], scripts: Sequence[str]) -> bool:
        options = ("-q", "-x", "-m", "", "-p", "no:cacheprovider", "-o", f"timeout={TEST_LIMIT_SECONDS}")
        environment = {**self._environment, "AUTOSYNC_SCRIPTS": " ".join(scripts)}
        command = (sys.executable, "-m", "pytest", *options, *tests)
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        if done.returncode not in {0, 1}:
            raise SystemExit(f"pytest ends with {done.returncode}: {' '.join(tests)}\n{done.stdout}{done.stderr}")
        self.said = done.stdout
        return done.returncode == 0


def _selections(scripts: Iterable[str], tests: Iterable[str]) -> list[tuple[list[str], list[str]]]:
    """Return the runs of pytest: one for scripts, and one for other tests, which ignore the choice of scripts."""
    chosen, others = list(dict.fromkeys(scripts)), list(dict.fromkeys(tests))
    found: list[tuple[list[str], list[str]]] = []
    if chosen:
        found.append(([*SCRIPT_TESTS], chosen))
    if others:
        found.append((others, []))
    return found


def refuse_lost(scratch: Scratch, mutations: Sequence[Mutation]) -> None:
    """Raise unless each snippet occurs exactly once, because otherwise it is unknown what a mutation breaks."""
    for mutation in mutations:
        count = scratch.file(mutation).read_text().count(mutation.snippet)
        if count != 1:
            raise SystemExit(f"{mutation.feature}: {mutation.file} has {count} times, not once:\n{mutation.snippet}")


def verdict(scratch: Scratch, mutation: Mutation) -> Verdict:
    path = scratch.file(mutation)
    text = path.read_text()
    path.write_text(text.replace(mutation.snippet, mutation.replacement))
    try:
        return "survived" if scratch.test(mutation.scripts, mutation.tests) else "noticed"
    except subprocess.TimeoutExpired:
        # The tests hang, so the fault is noticed.
        return "noticed"
    finally:
        path.write_text(text)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def try_all(mutations: Sequence[Mutation]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="autosync-mutations-") as folder:
        scratch = Scratch(Path(folder))
        refuse_lost(scratch, mutations)
        tell("without a fault ...")
        scripts = [script for mutation in mutations for script in mutation.scripts]
        if not scratch.test(scripts, [test for mutation in mutations for test in mutation.tests]):
            raise SystemExit(f"{scratch.said}\nthe tests fail without a fault: there is nothing to be noticed")
        for mutation in mutations:
            start = time.monotonic()
            found = verdict(scratch, mutation)
            seconds = time.monotonic() - start
            rows.append({"feature": mutation.feature, "mutation": mutation.name, "verdict": found})
            tell(f"{found:<9} {seconds:5.0f} s  {mutation.feature}: {mutation.name}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="FEATURE", help="features to try; all of them if left out")
    parser.add_argument("--list", action="store_true", help="list features and mutations, and try nothing")
    arguments = parser.parse_args()
    known = list(dict.fromkeys(mutation.feature for mutation in MUTATIONS))
    for feature in arguments.only or ():
        if feature not in known:
            parser.error(f"unknown feature {feature!r} (known: {', '.join(known)})")
    chosen = [mutation for mutation in MUTATIONS if mutation.feature in (arguments.only or known)]
    if arguments.list:
        print("\n".join(f"{mutation.feature}: {mutation.name}" for mutation in chosen))
        return 0
    rows = try_all(chosen)
    survived = sum(row["verdict"] == "survived" for row in rows)
    json.dump({"schema": "autosync.mutations/1", "num_survived": survived, "mutations": rows}, sys.stdout, indent=2)
    print()
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
