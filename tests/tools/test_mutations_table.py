"""What `make mutations` breaks is there to be broken."""

import sys
from pathlib import Path


def test_every_snippet_stands_once_in_its_file() -> None:
    root = Path(__file__).parents[2]
    sys.path.insert(0, str(root / "tools"))
    try:
        from mutations_table import MUTATIONS
    finally:
        sys.path.remove(str(root / "tools"))
    counts = {one.name: (root / "autosync" / one.file).read_text("utf-8").count(one.snippet) for one in MUTATIONS}
    assert counts, "there is something to break"
    assert {name: count for name, count in counts.items() if count != 1} == {}
