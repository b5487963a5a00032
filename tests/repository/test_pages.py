"""Pages are reached from the README, and their links lead to files and headings that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

_LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")


def _pages(root: Path) -> list[Path]:
    """The pages for users, without those of docs/extending."""
    above = [root / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "datasets/README.md")]
    return above + [page for page in sorted((root / "docs").rglob("*.md")) if page.parent.name != "extending"]


def _prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken(page: Path) -> Iterator[str]:
    for target, anchor in _LINK.findall(_prose(page)):
        if target.startswith("http"):
            continue
        path = (page.parent / target).resolve() if target else page
        # The site has no folders to show.
        if not path.is_file() or (anchor and anchor not in _anchors(path)):
            yield f"{page.name}: {target}#{anchor}"


def test_links_lead_to_files_and_headings(root: Path) -> None:
    pages = [*_pages(root), root / "CONTRIBUTING.md", *sorted((root / "benchmarks").rglob("README.md"))]
    assert [broken for page in pages for broken in _broken(page)] == []


def test_the_readme_links_every_page(root: Path) -> None:
    readme = root / "README.md"
    linked = {(root / target).resolve() for target, _ in _LINK.findall(_prose(readme)) if target}
    assert [page.name for page in _pages(root) if page != readme and page.resolve() not in linked] == []
