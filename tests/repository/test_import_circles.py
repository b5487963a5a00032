"""No two files import each other, directly or by way of others.

Every import counts: at the top of a file, inside a function, and under TYPE_CHECKING. Files that name each other's
types can only be understood together, whenever the import runs.
"""

import ast
from collections.abc import Mapping
from pathlib import Path


def _imports(source: str, module: str, modules: Mapping[str, object]) -> set[str]:
    """The modules of the product that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # `from autosync.plan import types` names a module, `from autosync.plan.types import Plan` does not.
            names.update(
                submodule if (submodule := f"{node.module}.{alias.name}") in modules else node.module
                for alias in node.names
            )
    return {name for name in names if name in modules and name != module}


def _circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach one another (Tarjan's strongly connected components of two and more)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for imported in sorted(graph[module]):
            if imported not in order:
                visit(imported)
            if imported in stack:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == order[module]:
            members = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(members) > 1:
                circles.append(sorted(members))

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return circles


def test_no_files_import_each_other_in_a_circle(modules: dict[str, Path]) -> None:
    # The package itself only lists the names that it loads when they are first used.
    sources = {module: path.read_text(encoding="utf-8") for module, path in modules.items() if module != "autosync"}
    graph = {module: _imports(source, module, sources) for module, source in sources.items()}
    circles = _circles(graph)
    assert not circles, "\n".join(f"a circle of imports: {', '.join(circle)}" for circle in circles)


def test_a_circle_is_found() -> None:
    sources = {
        "autosync.a": "from autosync import b",
        "autosync.b": "def late():\n    from autosync.c import value",
        "autosync.c": "if TYPE_CHECKING:\n    import autosync.a\nvalue = 1",
        "autosync.d": "import autosync.a\nimport autosync.e\nimport json",
        "autosync.e": "",
    }
    graph = {module: _imports(source, module, sources) for module, source in sources.items()}
    assert _circles(graph) == [["autosync.a", "autosync.b", "autosync.c"]]
