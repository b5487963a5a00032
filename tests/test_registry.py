"""Names for variants: built in, added by other packages, unknown."""

from importlib import metadata

import pytest

from autosync.errors import OperationError, UnknownNameError
from autosync.registry import Registry

_BUILTIN = {"ring": "collections:OrderedDict", "tree": "collections:deque"}


def _add(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    def entry_points(*, group: str) -> list[metadata.EntryPoint]:
        assert group == "autosync.shapes"
        return [metadata.EntryPoint(name=name, value=value, group=group)]

    monkeypatch.setattr(metadata, "entry_points", entry_points)


def test_a_name_is_imported_when_it_is_asked_for() -> None:
    from collections import deque

    registry = Registry("shape", {**_BUILTIN, "broken": "no.such.module:thing"})
    assert registry.names() == ("broken", "ring", "tree")
    assert registry.get("tree") is deque


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as caught:
        Registry("shape", _BUILTIN).get("rign")
    assert str(caught.value) == "unknown shape 'rign' (known: ring, tree); did you mean 'ring'?"


def test_another_package_adds_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _add(monkeypatch, "count", "collections:Counter")
    registry = Registry("shape", _BUILTIN)
    assert registry.names() == ("count", "ring", "tree")
    assert registry.get("count").__name__ == "Counter"


def test_another_package_takes_no_name_away(monkeypatch: pytest.MonkeyPatch) -> None:
    _add(monkeypatch, "ring", "collections:Counter")
    with pytest.raises(OperationError, match="the shape name 'ring' is taken by collections:OrderedDict"):
        Registry("shape", _BUILTIN).names()


def test_the_same_entry_twice_is_no_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    _add(monkeypatch, "ring", "collections:OrderedDict")
    assert Registry("shape", _BUILTIN).names() == ("ring", "tree")


def test_changing_the_table_later_changes_nothing() -> None:
    table = dict(_BUILTIN)
    registry = Registry("shape", table)
    table.clear()
    assert registry.names() == ("ring", "tree")


def test_an_object_is_found_by_the_name_it_gets_and_is_not_listed() -> None:
    from collections import Counter

    registry = Registry("shape", _BUILTIN)
    assert "collections.Counter" not in registry
    assert registry.name_of(Counter) == "collections.Counter"
    assert "collections.Counter" in registry
    assert registry.get("collections.Counter") is Counter
    assert registry.names() == ("ring", "tree")


def test_a_name_keeps_itself() -> None:
    assert Registry("shape", _BUILTIN).name_of("ring") == "ring"


def test_any_other_object_stands_for_a_builder_that_returns_it() -> None:
    registry, given = Registry("shape", _BUILTIN), [1, 2]
    assert registry.name_of(given) == "builtins.list"
    assert registry.get("builtins.list")("ground", prior=None) is given
