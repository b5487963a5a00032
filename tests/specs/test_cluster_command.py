"""`autosync cluster show`: a table for people, one JSON document for programs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from autosync.cli.cluster import cluster
from autosync.errors import DocumentError, InputError
from autosync.specs.cluster import describe
from autosync.specs.cluster_file import dump_cluster, load_cluster


def test_show_prints_the_table() -> None:
    result = CliRunner().invoke(cluster, ["show", "4-hosts-2-servers"])
    assert result.exit_code == 0
    assert result.stdout == describe(load_cluster("4-hosts-2-servers")) + "\n"


def test_show_json_is_one_document_that_is_a_cluster_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(cluster, ["show", "16-hosts-2-racks", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == dump_cluster(load_cluster("16-hosts-2-racks"))
    path = tmp_path / "copy.json"
    path.write_text(result.stdout, encoding="utf-8")
    assert load_cluster(path) == load_cluster("16-hosts-2-racks")


def test_mistakes_are_left_to_the_application(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("schema: autosync.cluster/1\nnodes: 3\n", encoding="utf-8")
    result = CliRunner().invoke(cluster, ["show", str(path)])
    assert isinstance(result.exception, DocumentError)
    assert str(result.exception).startswith(f"{path}:2: nodes: ")
    assert isinstance(CliRunner().invoke(cluster, ["show", "no-such-cluster"]).exception, InputError)
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"]])
def test_help_has_an_example(arguments: list[str]) -> None:
    result = CliRunner().invoke(cluster, arguments)
    assert result.exit_code == 0
    assert "autosync cluster show cluster.yaml" in result.stdout


def test_other_machines_under_the_local_launcher_are_refused_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(
        "schema: autosync.cluster/1\nlauncher: local\nnodes:\n- {name: a, host: gpu1, bandwidth: 1 Gbit/s}\n",
        encoding="utf-8",
    )
    for arguments in (["show", str(path)], ["probe", str(path)], ["check", str(path)]):
        error = CliRunner().invoke(cluster, arguments).exception
        assert isinstance(error, InputError)
        assert str(error).startswith(f"{path}:4: nodes[0].host: a is on gpu1 (the local launcher ")
