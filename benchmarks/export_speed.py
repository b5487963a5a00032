"""How long the export of a large dataset takes, how much memory, and whether it reads back exactly.

    python benchmarks/export_speed.py [DATASET] [--records 10000] > out.json

Makes a dataset of that many records, real ones again and again with other numbers and times, and runs `autosync export`
on it for each format in a process of its own. Prints one JSON document: for each format the seconds and the peak of
memory of the export, the bytes it wrote, and whether what it wrote reads back as it was. Ends with 0 where all do, in
less than 30 seconds and 2 GiB each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autosync.datasets.packed import pack, read_packed
from autosync.datasets.schema import Record
from autosync.datasets.sources import SHIPPED, Source

FORMATS = {"parquet": "out.parquet", "csv": "out.csv", "jsonl": "out.jsonl", "autodist": "out"}
MAX_SECONDS = 30.0
MAX_MEMORY_BYTES = 2 * 2**30
PROGRAM = """
import atexit, sys
from pathlib import Path
from autosync.cli.main import main
from autosync.trials.meters import peak_memory_bytes
peak = Path(sys.argv.pop(1))
atexit.register(lambda: peak.write_text(str(peak_memory_bytes())))
main()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", type=Path, default=SHIPPED, help="whose records are multiplied")
    parser.add_argument("--records", type=int, default=10_000, help="how many records there are to be")
    options = parser.parse_args()
    source = Source(options.dataset)
    originals = list(source.records(lambda problem: sys.stderr.write(f"left out: {problem}\n")))
    with TemporaryDirectory() as folder:
        dataset = Path(folder) / "dataset"
        pack(itertools.islice(copies(originals), options.records), source.specs(), dataset)
        expected = sorted(read_packed(dataset), key=place)
        results = {name: exported(dataset, name, Path(folder) / file, expected) for name, file in FORMATS.items()}
    is_good = all(
        one["is_exact"] and one["seconds"] < MAX_SECONDS and one["peak_memory_bytes"] < MAX_MEMORY_BYTES
        for one in results.values()
    )
    document = {"num_records": len(expected), "num_originals": len(originals), "formats": results, "passed": is_good}
    print(json.dumps(document, indent=2))
    return int(not is_good)


def copies(records: Sequence[Record]) -> Iterator[Record]:
    """The records without end; from the second round on of other studies, with other times."""
    rng = random.Random(0)
    yield from records
    for number in itertools.count(1):
        for record in records:
            yield replace(slowed(record, rng.uniform(1.0, 1.1)), study=f"{record.study}-{number}")


def slowed(record: Record, factor: float) -> Record:
    """A record whose steps took that much longer."""
    measurement = record.measurement
    if measurement is None:
        return record
    seconds = {name: factor * getattr(measurement, name) for name in ("low_seconds", "median_seconds", "high_seconds")}
    steps = tuple(tuple(factor * step for step in of_rank) for of_rank in measurement.step_seconds)
    return replace(record, measurement=replace(measurement, step_seconds=steps, **seconds))


def exported(dataset: Path, file_format: str, output: Path, expected: Sequence[Record]) -> dict[str, Any]:
    """What one export took."""
    peak = output.with_suffix(".peak")
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(peak),
        "export",
        str(dataset),
        "--format",
        file_format,
        "-o",
        str(output),
    ]
    began = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"autosync export --format {file_format} ended with {process.returncode}")
    sys.stderr.write(f"{file_format}: {seconds:.1f} s\n")
    files = [path for path in (output.rglob("*") if output.is_dir() else [output]) if path.is_file()]
    began = time.perf_counter()
    found = sorted(Source(output).records(refuse), key=place)
    return {
        "seconds": round(seconds, 2),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_memory_bytes": int(peak.read_text(encoding="utf-8")),
        "num_bytes": sum(path.stat().st_size for path in files),
        "read_seconds": round(time.perf_counter() - began, 2),
        "is_exact": repr(found) == repr(list(expected)),
    }


def place(record: Record) -> tuple[str, int]:
    return record.study, record.trial


def refuse(problem: object) -> None:
    raise SystemExit(f"what was exported cannot be read: {problem}")


if __name__ == "__main__":
    sys.exit(main())
