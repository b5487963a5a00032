"""A public class name means one thing in the whole product."""

import ast
from collections import Counter
from pathlib import Path

# Each name that several classes may have, and why.
NAMED_TWICE: dict[str, str] = {}


def test_no_public_class_name_is_defined_twice(modules: dict[str, Path]) -> None:
    counts: Counter[str] = Counter()
    for path in modules.values():
        counts.update(_class_names(path.read_text(encoding="utf-8")))
    repeated = {name for name, count in counts.items() if count > 1}
    assert not sorted(repeated - NAMED_TWICE.keys()), "give one of them another name, or state a reason here"


def _class_names(source: str) -> set[str]:
    classes = (node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return {name for name in classes if not name.startswith("_")}


def test_public_classes_are_seen_and_private_ones_are_not() -> None:
    assert _class_names("class Plan: ...\nclass _Plan: ...\ndef f():\n    class Step: ...\n") == {"Plan", "Step"}
