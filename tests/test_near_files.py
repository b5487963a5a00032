"""A misspelt path is answered with the path that it may have meant."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.documents import read_document
from autosync.errors import DocumentError, InputError, UnknownNameError
from autosync.near_files import near_path, near_path_hint
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.specs.task_file import load_task


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("cluster.yaml", "model.py", "spec.yaml", "lab/hosts.yaml", ".zebra"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("missing", "near"),
    [
        ("cluser.yaml", "cluster.yaml"),
        ("cluster.yml", "cluster.yaml"),
        ("./lab/host.yaml", "lab/hosts.yaml"),
        ("labs/hosts.yaml", "lab/hosts.yaml"),
        ("mode.py", "model.py"),
        ("zebra", ""),
        ("something-else", ""),
        ("nowhere/at/all.yaml", ""),
        ("", ""),
        ("zz\0zz", ""),
    ],
)
@pytest.mark.usefixtures("folder")
def test_the_nearest_path_is_found(missing: str, near: str) -> None:
    assert near_path(missing) == near
    assert near_path_hint(missing) == (f"did you mean '{near}'?" if near else "")


@given(st.text(max_size=300))
def test_no_path_is_too_strange(path: str) -> None:
    assert isinstance(near_path(path), str)


@pytest.mark.usefixtures("folder")
def test_a_missing_file_has_a_hint_and_no_line() -> None:
    with pytest.raises(DocumentError) as document:
        read_document("cluser.yaml")
    assert str(document.value).startswith("cluser.yaml: cannot be read: No such file or directory (")
    with pytest.raises(InputError) as task:
        load_task("mode.py")
    with pytest.raises(InputError) as model:
        load_model("spek.yaml")
    for error, near in ((document, "cluster.yaml"), (task, "model.py"), (model, "spec.yaml")):
        assert error.value.problems[0].hint == f"did you mean '{near}'?"
        assert error.value.problems[0].line == 0


@pytest.mark.usefixtures("folder")
def test_a_bare_name_may_mean_a_file() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'cluster\.yaml'\?$"):
        load_cluster("cluster")
    with pytest.raises(UnknownNameError, match=r"did you mean 'spec\.yaml'\?$"):
        load_model("spec")
