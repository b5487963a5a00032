"""Whole files are replaced at once, lines are appended whole, and a crash in either loses nothing that was there."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync import jsonio
from autosync.errors import DocumentError

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(_VALUES)
def test_canonical_json_is_one_text_per_value(value: object) -> None:
    text = jsonio.canonical_json(value)
    assert json.loads(text) == value
    assert "\n" not in text
    assert jsonio.canonical_json(json.loads(text)) == text


def test_canonical_json_knows_no_order_of_keys_and_no_nan() -> None:
    assert jsonio.canonical_json({"b": 1, "a": [True, None, "é"]}) == '{"a":[true,null,"é"],"b":1}'
    with pytest.raises(ValueError, match="JSON compliant"):
        jsonio.canonical_json(float("nan"))


def test_hashes_do_not_change_between_versions() -> None:
    # They name records and plans for good.
    assert jsonio.content_hash({"b": 1, "a": [1.5, "x"]}) == "27edd5497e48a293"
    assert len(jsonio.content_hash([], length=40)) == 40


@given(_VALUES)
def test_indented_json_reads_back(value: object) -> None:
    assert json.loads(jsonio.indented_json(value)) == value


class TestWriting:
    def test_a_new_file_in_a_new_folder(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "folder" / "file.json"
        jsonio.write_json(path, {"a": "é\u2028"})
        assert path.read_text(encoding="utf-8") == '{\n  "a": "é\\u2028"\n}\n'

    def test_a_crash_leaves_the_old_file_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "file.txt"
        jsonio.write_text(path, "old")

        def crash(_: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", crash)
        with pytest.raises(KeyboardInterrupt):
            jsonio.write_text(path, "new, and half of it is in the temporary file")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_what_cannot_be_written_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = tmp_path / "file.json"
        jsonio.write_text(path, "old")
        with pytest.raises(UnicodeEncodeError):
            jsonio.write_text(path, "x" * 100_000 + "\ud800")
        with pytest.raises(ValueError, match="JSON compliant"):
            jsonio.write_json(path, [float("inf")])
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_line_ends_are_kept(self, tmp_path: Path) -> None:
        jsonio.write_text(tmp_path / "file", "a\r\nb\n")
        assert (tmp_path / "file").read_bytes() == b"a\r\nb\n"

    def test_the_users_umask_holds(self, tmp_path: Path) -> None:
        old = os.umask(0o027)
        try:
            jsonio.write_text(tmp_path / "file", "x")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640

    def test_a_link_stays_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "real").write_text("old")
        (tmp_path / "link").symlink_to(tmp_path / "real")
        jsonio.write_text(tmp_path / "link", "new")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_text() == "new"

    def test_a_pipe_is_written_to_and_not_replaced(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        got: list[str] = []
        reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
        reader.start()
        jsonio.write_text(pipe, "through")
        reader.join()
        assert got == ["through"]
        assert pipe.is_fifo()


class TestLines:
    @given(st.lists(_VALUES, max_size=5))
    def test_what_is_appended_is_read(self, tmp_path_factory: pytest.TempPathFactory, values: list[object]) -> None:
        path = tmp_path_factory.mktemp("lines") / "log.jsonl"
        for value in values:
            jsonio.append_json_line(path, value)
        assert (list(jsonio.read_json_lines(path)) if values else []) == values

    # Torn within a character too: "é" is two bytes.
    @pytest.mark.parametrize("left", range(1, len('{"b":"é"}'.encode())))
    def test_a_torn_last_line_is_left_out_and_mended(self, tmp_path: Path, left: int) -> None:
        path = tmp_path / "log.jsonl"
        jsonio.append_json_line(path, {"a": 1})
        with path.open("ab") as file:
            file.write('{"b":"é"}'.encode()[:left])
        assert list(jsonio.read_json_lines(path)) == [{"a": 1}]
        jsonio.append_json_line(path, {"c": 3})
        assert list(jsonio.read_json_lines(path)) == [{"a": 1}, {"c": 3}]
        assert path.read_bytes() == b'{"a":1}\n{"c":3}\n'

    def test_a_whole_last_line_without_its_end_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text('{"a":1}\n{"b":2}')
        assert list(jsonio.read_json_lines(path)) == [{"a": 1}, {"b": 2}]
        jsonio.append_json_line(path, {"c": 3})
        assert list(jsonio.read_json_lines(path)) == [{"a": 1}, {"b": 2}, {"c": 3}]

    def test_a_torn_line_longer_than_a_block(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text('{"a":1}\n{"b":"' + "x" * 200_000)
        jsonio.append_json_line(path, {"c": 3})
        assert list(jsonio.read_json_lines(path)) == [{"a": 1}, {"c": 3}]

    def test_a_file_that_is_one_torn_line(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text('{"a')
        assert list(jsonio.read_json_lines(path)) == []
        jsonio.append_json_line(path, {"c": 3})
        assert list(jsonio.read_json_lines(path)) == [{"c": 3}]

    @pytest.mark.parametrize(
        ("line", "what"),
        [
            (b'{"a"', "no JSON: Expecting ':' delimiter"),
            (b"\xff", "no JSON: not UTF-8 text"),
            (b"NaN", "no JSON: NaN is no finite number"),
            (b"[" * 50_000, "no JSON: nested too deeply"),
        ],
    )
    def test_a_broken_line_in_the_middle_is_named(self, tmp_path: Path, line: bytes, what: str) -> None:
        path = tmp_path / "log.jsonl"
        path.write_bytes(b'{"a":1}\n\n' + line + b'\n{"b":2}\n')
        with pytest.raises(DocumentError) as caught:
            list(jsonio.read_json_lines(path))
        assert str(caught.value) == f"{path}:3: {what} (one JSON value a line)"

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(DocumentError, match=r"log\.jsonl: cannot be read: No such file"):
            list(jsonio.read_json_lines(tmp_path / "log.jsonl"))

    def test_many_writers_lose_no_line(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"

        def write(who: int) -> None:
            for number in range(20):
                jsonio.append_json_line(path, [who, number])

        writers = [threading.Thread(target=write, args=(who,)) for who in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert sorted(jsonio.read_json_lines(path)) == [[who, number] for who in range(4) for number in range(20)]


def test_a_device_without_room_is_named() -> None:
    with pytest.raises(OSError, match="No space left") as raised:
        jsonio.write_text(Path("/dev/full"), "x")
    assert raised.value.filename == "/dev/full"


def test_errors_name_the_file_as_the_user_does(tmp_path: Path) -> None:
    path = tmp_path / "out.yaml"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(OSError, match="No space left") as raised, jsonio.replacing(path):
        os.write(os.open("/dev/full", os.O_WRONLY), b"x")
    assert raised.value.filename == str(path)
    assert path.read_text(encoding="utf-8") == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["out.yaml"]
    with pytest.raises(OSError, match="No such file") as raised:
        jsonio.write_text(Path("/proc/out.yaml"), "x")
    assert raised.value.filename == "/proc/out.yaml"


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    # As large as it says, and nothing on the disk.
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(DocumentError, match=r"hole:1: a line of more than \d+ bytes"):
        list(jsonio.read_json_lines(tmp_path / "hole"))
