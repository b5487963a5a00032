"""`python tests/ddp_suite/run.py`: every behaviour of the suite under each strategy, on two and on three ranks.

Prints what is not as it should be and the counts, and writes one JSON document. With `--resume` what the document has
already is kept, and only what is missing or not as it should be is run. Exit 0: all is as under stock DDP, or refused
as `refusals.py` lists it; 1: something is not; 2: bad input.
"""

import argparse
import importlib
import importlib.util
import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Before torch is imported; the ranks are forks of this process.
os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402
from attempts import LIMIT_SECONDS, REFERENCE, Attempt, wait  # noqa: E402
from chosen import SLICE  # noqa: E402
from environment import BEHAVIOURS, STRATEGIES, WAYS, net, task  # noqa: E402
from refusals import is_listed  # noqa: E402

from autosync.specs.profile.run import profile  # noqa: E402

OUTPUT = Path("build/ddp-suite.json")
GOOD = ("same", "more", "refused")
KINDS = (*GOOD, "unlisted", "wrong", "raised", "hang", "crash")

Results = dict[str, dict[str, Any]]


class Wanted(NamedTuple):
    """A behaviour to run on so many ranks; `is_second` says that it was over its time, or crashed, once already."""

    name: str
    ranks: int
    strategies: list[str]
    ends: str = ""
    is_second: bool = False


def load_behaviours() -> None:
    for path in sorted((HERE / "behaviours").glob("*.py")):
        importlib.import_module(f"behaviours.{path.stem}")


def load_file(path: Path) -> None:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    found.loader.exec_module(importlib.util.module_from_spec(found))


def key_of(name: str, strategy: str, ranks: int) -> str:
    return f"{name} / {strategy} / {ranks}"


def wanted(arguments: argparse.Namespace, results: Results) -> list[tuple[str, int, list[str]]]:
    """The behaviours to run, with the number of ranks and the strategies that are left."""
    found = []
    for ranks in arguments.ranks:
        for name, one in BEHAVIOURS.items():
            chosen = not arguments.only or any(word in (name, one.group) for word in arguments.only)
            if not chosen or one.only_ranks not in (None, ranks):
                continue
            left = [
                strategy
                for strategy in arguments.strategies
                if results.get(key_of(name, strategy, ranks), {}).get("verdict") not in GOOD
            ]
            if left:
                found.append((name, ranks, left))
    return found


def classified(result: dict[str, Any], name: str, strategy: str) -> dict[str, Any]:
    """A refusal that is in no table is a kind of its own."""
    if result["verdict"] == "refused" and not is_listed(name, strategy, result["words"]):
        return {**result, "verdict": "unlisted"}
    return result


def run_all(arguments: argparse.Namespace, results: Results) -> None:
    pending = [Wanted(*one) for one in wanted(arguments, results)]
    running: list[tuple[Attempt, bool]] = []
    num_all = len(pending)
    begun = last = time.monotonic()
    try:
        while pending or running:
            while pending and len(running) < arguments.jobs:
                one = pending.pop(0)
                limit = arguments.limit * (2 if one.is_second else 1)
                attempt = Attempt(one.name, one.ranks, one.strategies, ends=one.ends, limit_seconds=limit)
                running.append((attempt, one.is_second))
            wait([attempt for attempt, _ in running])
            for attempt, is_second in list(running):
                attempt.advance()
                if not attempt.is_over:
                    continue
                running.remove((attempt, is_second))
                pending = [*taken_in(attempt, is_second, results), *pending]
                if time.monotonic() - last > arguments.every:
                    last = time.monotonic()
                    save(arguments, results)
                    tell(f"{num_all - len(pending)} of {num_all} after {last - begun:.0f} s")
    finally:
        for attempt, _ in running:
            attempt.stop()
        save(arguments, results)


def taken_in(attempt: Attempt, is_second: bool, results: Results) -> list[Wanted]:
    """Note an attempt's results; what is to be run for it still."""
    more: list[Wanted] = []
    reference = attempt.results.pop(REFERENCE, None)
    if reference is not None and reference["verdict"] in ("hang", "crash") and not is_second:
        return [Wanted(attempt.name, attempt.ranks, attempt.left, is_second=True)]
    for strategy, result in attempt.results.items():
        if not result.pop("is_sure") and result["verdict"] in ("hang", "crash") and not is_second:
            # Once more, with twice the time: the machine may have been busy.
            more.append(Wanted(attempt.name, attempt.ranks, [strategy], ends=attempt.ends, is_second=True))
        else:
            results[key_of(attempt.name, strategy, attempt.ranks)] = classified(result, attempt.name, strategy)
    if attempt.left:
        more.append(Wanted(attempt.name, attempt.ranks, attempt.left, ends=attempt.ends))
    return more


def save(arguments: argparse.Namespace, results: Results) -> None:
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    document = {"torch": torch.__version__, "counts": counts(results), "results": results}
    scratch = arguments.output.with_suffix(".new")
    scratch.write_text(json.dumps(document, indent=1), encoding="utf-8")
    scratch.replace(arguments.output)


def counts(results: Results) -> dict[str, int]:
    found = Counter(result["verdict"] for result in results.values())
    return {kind: found[kind] for kind in KINDS if found[kind]}


def tell(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


def report(results: Results, *, quiet: bool) -> int:
    """Print what is not as it should be and the counts; the exit code."""
    for key, result in sorted(results.items(), key=lambda item: (KINDS.index(item[1]["verdict"]), item[0])):
        if result["verdict"] not in GOOD and not quiet:
            sys.stdout.write(f"{result['verdict']}: {key} ({result['moment']}): {result['words']}\n")
    by_strategy: dict[str, Counter[str]] = {}
    for key, result in results.items():
        by_strategy.setdefault(key.split(" / ")[1], Counter())[result["verdict"]] += 1
    for strategy, found in by_strategy.items():
        sys.stdout.write(f"{strategy}: " + ", ".join(f"{found[kind]} {kind}" for kind in KINDS if found[kind]) + "\n")
    behaviours = {key.split(" / ")[0] for key in results}
    sys.stdout.write(f"{len(behaviours)} behaviours, {len(results)} results: ")
    sys.stdout.write(", ".join(f"{number} {kind}" for kind, number in counts(results).items()) + "\n")
    return 0 if all(result["verdict"] in GOOD for result in results.values()) else 1


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--ranks", default="2,3")
    parser.add_argument("--only", nargs="*", default=[], help="names of behaviours or of groups of them")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"the JSON document ({OUTPUT})")
    parser.add_argument("--resume", action="store_true", help="keep what the document has of good results")
    parser.add_argument("--jobs", type=int, default=2, help="how many behaviours run at a time")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds that one behaviour may take")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between words about how far it is")
    parser.add_argument("--quiet", action="store_true", help="print the counts alone")
    parser.add_argument("--slice", action="store_true", help="the behaviours of `make test`, on two ranks")
    parser.add_argument("--load", type=Path, action="append", default=[], help="a file with more behaviours")
    parser.add_argument("--list", action="store_true", help="print the names of behaviours and end")
    arguments = parser.parse_args(argv)
    arguments.strategies = arguments.strategies.split(",")
    arguments.ranks = [int(word) for word in arguments.ranks.split(",") if word.isdigit() and int(word) > 1]
    if arguments.slice:
        arguments.ranks, arguments.only = [2], list(SLICE)
    for path in arguments.load:
        load_file(path)
    known = {*BEHAVIOURS, *(one.group for one in BEHAVIOURS.values())}
    for word in [*arguments.only, *(f"strategy {name}" for name in arguments.strategies if name not in WAYS)]:
        if word not in known:
            parser.error(f"{word} is not known (see --list)")
    if not arguments.ranks:
        parser.error("--ranks is a list of numbers above 1, such as 2,3")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    warnings.filterwarnings("ignore")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    torch.set_num_threads(1)
    load_behaviours()
    arguments = parsed(argv)
    if arguments.list:
        sys.stdout.write("".join(f"{one.group}: {name}\n" for name, one in BEHAVIOURS.items()))
        return 0
    # What profiling imports takes a second; the ranks are forked with it.
    profile(task(net), steps=1)
    results: Results = {}
    if arguments.resume and arguments.output.exists():
        results = json.loads(arguments.output.read_text(encoding="utf-8"))["results"]
    run_all(arguments, results)
    return report(results, quiet=arguments.quiet)


if __name__ == "__main__":
    sys.exit(main())
