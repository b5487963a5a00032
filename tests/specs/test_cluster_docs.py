"""docs/cluster.md shows files that load and output that is what the command prints."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from autosync import documents
from autosync.cli.cluster import cluster
from autosync.errors import DocumentError
from autosync.specs.cluster_file import parse_cluster, shipped_clusters

PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
OUTPUTS = dict(re.findall(r"```text\n\$ autosync cluster show (\S+)\n(.*?)```", PAGE, re.DOTALL))

BROKEN = """\
schema: autosync.cluster/1
launcher: slrum
nodes:
  - name: a
    count: 2
    bandwidth: 500
  - name: s
    role: server
    devices: 2
    bandwidth: 1 Gbit/s
"""


@pytest.mark.parametrize("text", EXAMPLES)
def test_each_example_is_a_cluster(text: str) -> None:
    assert parse_cluster(documents.parse_document(text, file="example.yaml")).num_workers > 0


def test_the_page_has_examples_of_both_formats() -> None:
    assert {text.startswith("schema:") for text in EXAMPLES} == {True, False}
    assert OUTPUTS.keys() == {"lab.yaml", "broken.yaml"}


def test_the_table_shown_is_that_of_the_first_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lab.yaml").write_text(EXAMPLES[0], encoding="utf-8")
    assert CliRunner().invoke(cluster, ["show", "lab.yaml"]).stdout == OUTPUTS["lab.yaml"]


def test_the_mistakes_shown_are_those_of_a_broken_file() -> None:
    with pytest.raises(DocumentError) as caught:
        parse_cluster(documents.parse_document(BROKEN, file="broken.yaml"))
    assert [f"error: {problem}" for problem in caught.value.problems] == OUTPUTS["broken.yaml"].splitlines()


def test_the_page_lists_every_shipped_cluster() -> None:
    section = PAGE.partition("## Clusters that ship")[2].partition("## ")[0]
    assert set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)) == set(shipped_clusters())
