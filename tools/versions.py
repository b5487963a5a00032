"""Runs the tests with each torch and Python at the ends of what the metadata promises.

    python tools/versions.py [--only 3.13/newest ...] [-- PYTEST ARGUMENTS]

The oldest and the newest torch are those of the range in pyproject.toml, the pinned one is that of constraints.txt; the
Pythons are the oldest and the newest of the classifiers. Each pair gets an environment of its own in build/versions,
which is kept. torch without the pin brings several GB of CUDA packages. stdout gets one JSON document, stderr the
output of the tests. The exit status is 0 if all pairs pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build" / "versions"
TORCH_PACKAGES = ("torch", "torchvision")
COMPILE = "from autosync.simulators.learned.rehearsal import rehearsed; rehearsed()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A Python and a torch that the tests run with."""

    python: str
    release: str
    torch: str
    """The requirement that pip installs."""

    @property
    def name(self) -> str:
        """The name of the pair, for `--only`."""
        return f"{self.python}/{self.release}"


def promised_pairs(metadata: Mapping[str, Any], constraints: str) -> list[Pair]:
    """Return the pairs at the ends of what the metadata promises, and those of the pinned torch."""
    project = metadata["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    (newest,) = (text for text in project["dependencies"] if re.match(r"torch\W", text))
    oldest = "torch==" + _found(r">=([\d.]+)", newest)
    pinned = "torch==" + _found(r"^torch==([\d.]+)$", constraints)
    releases = {"oldest": oldest, "pinned": pinned, "newest": newest}
    if _is_same_release(oldest, pinned):
        del releases["oldest"]
    return [
        Pair(python=python, release=release, torch=torch)
        for release, torch in releases.items()
        for python in (pythons[0], pythons[-1])
    ]


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        sys.exit(f"versions: no {pattern} in {text.splitlines()[0]!r}")
    return found[1]


def _is_same_release(first: str, second: str) -> bool:
    """Whether two pins name one release: 2.13 is 2.13.0."""
    return first.removesuffix(".0") == second.removesuffix(".0")


def make_environment(pair: Pair) -> Path:
    """Return the Python of the pair's environment; make the environment if there is none."""
    folder = ENVIRONMENTS / pair.name.replace("/", "-")
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if not done.exists():
        subprocess.run([_interpreter(pair.python), "-m", "venv", "--clear", folder], check=True)
        others = ENVIRONMENTS / "constraints.txt"
        others.write_text("".join(_without_torch((ROOT / "constraints.txt").read_text("utf-8"))), "utf-8")
        install = [python, "-m", "pip", "install", "--quiet", "--quiet"]
        subprocess.run([*install, "setuptools", pair.torch], check=True)
        editable = ["--no-build-isolation", "--editable", f"{ROOT}[dev]"]
        subprocess.run([*install, "--constraint", others, pair.torch, *editable], check=True)
        done.touch()
    return python


def _interpreter(version: str) -> str:
    path = shutil.which(f"python{version}")
    if path is None:
        sys.exit(f"versions: there is no python{version} on the PATH")
    return path


def _without_torch(constraints: str) -> Iterator[str]:
    for line in constraints.splitlines(keepends=True):
        if line.partition("==")[0] not in TORCH_PACKAGES:
            yield line


def run_tests(pair: Pair, arguments: Sequence[str]) -> dict[str, Any]:
    """Run pytest in the pair's environment; return its last line and its exit status."""
    began = time.monotonic()
    python, environment = make_environment(pair), {**os.environ, "PYTHONSAFEPATH": "1"}
    # Compiled before the tests, it counts towards no test's time limit.
    subprocess.run([python, "-c", COMPILE], cwd=ROOT, env=environment, check=True)
    done = subprocess.run(
        [python, "-m", "pytest", "--quiet", "-n", "2", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    sys.stderr.write(done.stdout)
    last = done.stdout.strip().splitlines()[-1:]
    return {**asdict(pair), "exit": done.returncode, "tests": "".join(last), "minutes": _minutes(began)}


def _minutes(began: float) -> float:
    return round((time.monotonic() - began) / 60, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="PYTHON/TORCH", help="these pairs instead of all")
    parser.add_argument("arguments", nargs="*", help="for pytest")
    options = parser.parse_args()
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    pairs = {pair.name: pair for pair in promised_pairs(metadata, (ROOT / "constraints.txt").read_text("utf-8"))}
    chosen = options.only or list(pairs)
    unknown = [name for name in chosen if name not in pairs]
    if unknown:
        parser.error(f"{unknown[0]} is not promised ({', '.join(pairs)})")
    results = [run_tests(pairs[name], options.arguments) for name in chosen]
    print(json.dumps({"schema": "autosync.versions/1", "pairs": results}, indent=1))
    return int(any(result["exit"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
