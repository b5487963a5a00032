"""`python tests/script_suite/run.py`: unchanged scripts under autosync, beside stock DDP, on two ranks of this machine.

Each script runs under stock DDP, under `autosync launch` by each strategy, under `autosync tune --stop` and under
`autosync doctor`. Prints what is not as it should be and the counts, and writes one JSON document. With `--resume` good
results and runs of stock DDP are kept, and only what is missing is run. Exit 0: all cells are as under stock DDP, or
refused as `listed.py` says; 1: some are not; 2: bad input.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from bundles import CLUSTER  # noqa: E402 - it lies here
from cells import CELLS, GOOD, KINDS, judge  # noqa: E402
from judging import FACTOR, FLOOR  # noqa: E402
from listed import BY_NAME, SCRIPTS, Script  # noqa: E402
from listed import KINDS as KINDS_OF_SCRIPTS  # noqa: E402
from processes import adopt_orphans  # noqa: E402
from runs import NUM_STEPS, Runs  # noqa: E402

OUTPUT = Path("build/script-suite.json")
LIMIT_SECONDS = 300.0
PACKAGES = ("torch", "torchvision", "timm", "transformers", "accelerate", "lightning", "peft")

Results = dict[str, dict[str, Any]]


def key_of(script: Script, cell: str) -> str:
    return f"{script.name} / {cell}"


def wanted(arguments: argparse.Namespace, results: Results) -> list[tuple[Script, str]]:
    """Return the cells to run."""
    return [
        (script, cell)
        for script in SCRIPTS
        if not arguments.only or script.name in arguments.only or script.kind in arguments.only
        for cell in arguments.cells
        if results.get(key_of(script, cell), {}).get("verdict") not in GOOD
    ]


def run_all(arguments: argparse.Namespace, results: Results) -> None:
    """Run cells one after the other, and write the document after each."""
    todo = wanted(arguments, results)
    if not arguments.resume:
        for name in {script.name for script, _ in todo}:
            shutil.rmtree(arguments.folder / name, ignore_errors=True)
    for number, (script, cell) in enumerate(todo, start=1):
        began = time.monotonic()
        runs = Runs(script, arguments.folder.resolve() / script.name, limit_seconds=arguments.limit)
        result = judge(runs, cell)
        seconds = round(time.monotonic() - began, 1)
        results[key_of(script, cell)] = {**asdict(result), "seconds": seconds}
        save(arguments.output, results)
        tell(f"{number} of {len(todo)}: {key_of(script, cell)}: {result.verdict}, after {seconds} s")


def save(path: Path, results: Results) -> None:
    """Write the document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES if importlib.util.find_spec(name)},
        "cluster": CLUSTER,
        "steps": NUM_STEPS,
        "rule": f"at most {FACTOR:g} times the distance of stock DDP from itself, plus {FLOOR:g} of the size",
        "counts": counts(results),
        "results": results,
    }
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(document, indent=1), encoding="utf-8")
    scratch.replace(path)


def counts(results: Results) -> dict[str, int]:
    found = Counter(result["verdict"] for result in results.values())
    return {kind: found[kind] for kind in KINDS if found[kind]}


def tell(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


def report(results: Results, *, quiet: bool) -> int:
    """Print what is not as it should be and the counts; return the exit code."""
    for key, result in results.items():
        if result["verdict"] not in GOOD and not quiet:
            sys.stdout.write(f"{result['verdict']}: {key}: {result['words']}\n")
    for cell in CELLS:
        found = counts({key: one for key, one in results.items() if key.endswith(f" / {cell}")})
        if found:
            sys.stdout.write(f"{cell}: {_listed(found)}\n")
    scripts = {key.partition(" / ")[0] for key in results}
    sys.stdout.write(f"{len(scripts)} scripts, {len(results)} cells: {_listed(counts(results))}\n")
    return 0 if all(result["verdict"] in GOOD for result in results.values()) else 1


def _listed(found: dict[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in found.items())


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help=f"names of scripts, or of {', '.join(KINDS_OF_SCRIPTS)}")
    parser.add_argument("--cells", default=",".join(CELLS), help=f"of {', '.join(CELLS)}")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"the JSON document ({OUTPUT})")
    parser.add_argument("--folder", type=Path, help="where scripts run  [the document's path without .json]")
    parser.add_argument("--resume", action="store_true", help="keep good results and runs of stock DDP")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds that a run may take")
    parser.add_argument("--quiet", action="store_true", help="print the counts alone")
    parser.add_argument("--list", action="store_true", help="print the names of scripts and end")
    arguments = parser.parse_args(argv)
    arguments.cells = arguments.cells.split(",")
    arguments.folder = arguments.folder or arguments.output.with_suffix("")
    for word in arguments.only:
        if word not in BY_NAME and word not in KINDS_OF_SCRIPTS:
            parser.error(f"{word} is not known (see --list)")
    for cell in arguments.cells:
        if cell not in CELLS:
            parser.error(f"{cell} is no cell ({', '.join(CELLS)})")
    missing = {
        name for script, _ in wanted(arguments, {}) for name in script.needs if not importlib.util.find_spec(name)
    }
    if missing and not arguments.list:
        parser.error(f"{', '.join(missing)} must be installed: make scripts-suite")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    arguments = parsed(argv)
    if arguments.list:
        sys.stdout.write("".join(f"{one.kind}: {one.name}\n" for one in SCRIPTS))
        return 0
    adopt_orphans()
    results: Results = {}
    if arguments.resume and arguments.output.exists():
        results = json.loads(arguments.output.read_text(encoding="utf-8"))["results"]
    run_all(arguments, results)
    return report(results, quiet=arguments.quiet)


if __name__ == "__main__":
    sys.exit(main())
