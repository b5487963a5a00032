"""The agent by itself: its frames, its Python versions, and that it ends its ranks if the launching side is gone."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.launchers import agent_link, frames
from autosync.launchers.network_interface import find_interface


@given(
    sent=st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=40)), max_size=6),
    size=st.integers(1, 50),
)
def test_frames_come_out_as_they_went_in(sent: list[tuple[int, int, bytes]], size: int) -> None:
    data = b"".join(frames.frame(*one) for one in sent)
    buffer, found = bytearray(), []
    for start in range(0, len(data), size):
        buffer += data[start : start + size]
        found += list(frames.whole_frames(buffer))
    assert found == sent
    assert not buffer


@pytest.mark.parametrize("name", ["agent", *agent_link.CARRIED])
def test_it_needs_nothing_but_an_old_python(name: str) -> None:
    source = resources.files("autosync.launchers").joinpath(f"{name}.py").read_text("utf-8")
    tree = ast.parse(source, feature_version=(3, 8))
    imported = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    carried = {f"autosync.launchers.{one}" for one in agent_link.CARRIED}
    assert {one.split(".")[0] for one in imported - carried} <= sys.stdlib_module_names


def test_an_interface_is_found_by_address() -> None:
    # The machine's own address is on no interface but loopback, which leads nowhere.
    assert find_interface(["127.0.0.1"]) is None
    assert find_interface(["::1"]) is None
    assert find_interface(["::1", "::1", "127.0.0.1"]) is None
    assert find_interface(["no-such-host.invalid"]) is None


IN_A_NETWORK_OF_ITS_OWN = """
set -e
ip link set lo up
for name in four six; do
    ip link add name $name type veth peer name $name-end
    ip link set $name up
    ip link set $name-end up
done
ip address add 10.9.0.1/24 dev four
ip address add fd00:9::1/64 dev six nodad
exec "$@"
"""

ASK = """
import json, sys
from autosync.launchers.network_interface import find_interface
print(json.dumps([find_interface(addresses) for addresses in json.loads(sys.argv[1])]))
"""


def test_an_interface_is_found_by_either_kind_of_address() -> None:
    asked = {
        ("10.9.0.1",): "four",
        ("fd00:9::1",): "six",
        # Written otherwise, it is the same address.
        ("FD00:9:0:0::1",): "six",
        # What is not this node's own is asked of the routing table.
        ("nobody.invalid", "10.9.0.2"): "four",
        ("nobody.invalid", "fd00:9::2"): "six",
        ("::1", "fd00:8::2", "fd00:9::2"): "six",
        ("fd00:8::1", "fd00:8::2"): None,
    }
    if not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("ip or unshare (iproute2, util-linux) is not installed")
    alone = ("unshare", "--net", *(("--map-root-user",) if os.geteuid() else ()), "--")
    made = subprocess.run(
        [*alone, "ip", "link", "add", "name", "probe", "type", "veth"], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.decode().strip()}")
    ask = (sys.executable, "-c", ASK, json.dumps([list(addresses) for addresses in asked]))
    done = subprocess.run(
        [*alone, "sh", "-c", IN_A_NETWORK_OF_ITS_OWN, "sh", *ask], check=True, stdout=subprocess.PIPE, timeout=60
    )
    assert dict(zip(asked, json.loads(done.stdout), strict=True)) == asked


class Conversation:
    """An agent, spoken to directly."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", agent_link.agent_program()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._buffer = bytearray()
        self._frames: list[tuple[int, int, bytes]] = []

    def send(self, kind: int, slot: int = 0, payload: bytes = b"") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(frames.frame(kind, slot, payload))
        self.process.stdin.flush()

    def start(self, slot: int, *command: str, **fields: Any) -> None:
        request = {
            "command": command,
            "environment": {},
            "folder": str(Path.cwd()),
            "log": None,
            "files": {},
            "control": False,
            "addresses": [],
            "nics": 1,
            **fields,
        }
        self.send(frames.START, slot, json.dumps(request).encode())

    def hear(self, kind: int) -> bytes:
        """The payload of the next frame of a kind."""
        assert self.process.stdout is not None
        while True:
            for position, (found, _, payload) in enumerate(self._frames):
                if found == kind:
                    del self._frames[: position + 1]
                    return payload
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, "the agent has ended"
            self._buffer += data
            self._frames += list(frames.whole_frames(self._buffer))


@pytest.fixture
def talk() -> Iterator[Conversation]:
    conversation = Conversation()
    yield conversation
    conversation.process.kill()
    conversation.process.communicate()


def test_output_comes_before_the_news_of_the_end(talk: Conversation) -> None:
    assert json.loads(talk.hear(frames.HELLO))["python"].startswith("3.")
    talk.start(3, "sh", "-c", "echo last words; exit 5")
    assert talk.hear(frames.OUTPUT) == b"last words\n"
    assert talk.hear(frames.EXIT) == b"5"
    talk.start(4, "/no/such/program")
    assert b"/no/such/program" in talk.hear(frames.FAULT)
    talk.start(5, "true", folder="/no/such/folder")
    assert talk.hear(frames.FAULT) == b"there is no folder /no/such/folder"
    talk.send(frames.STOP, 0, b"1")
    assert talk.process.wait(10) == 0


def test_files_are_copied_and_go_with_it(talk: Conversation) -> None:
    talk.start(0, "sh", "-c", 'cat "$BUNDLE"; echo; echo "$BUNDLE"', files={"BUNDLE": ["best.yaml", "content"]})
    text = talk.hear(frames.OUTPUT)
    while text.count(b"\n") < 2:
        text += talk.hear(frames.OUTPUT)
    content, path = text.decode().split()
    assert (content, Path(path).name) == ("content", "best.yaml")
    talk.send(frames.STOP, 0, b"1")
    talk.process.wait(10)
    assert not Path(path).parent.exists()


def test_files_of_one_name_are_kept_apart(talk: Conversation) -> None:
    files = {"AUTOSYNC_BUNDLE": ["best.yaml", "one\n"], "AUTOSYNC_BUNDLE_2": ["best.yaml", "two\n"]}
    talk.start(0, "sh", "-c", 'cat "$AUTOSYNC_BUNDLE" "$AUTOSYNC_BUNDLE_2"', files=files)
    text = talk.hear(frames.OUTPUT)
    while text.count(b"\n") < 2:
        text += talk.hear(frames.OUTPUT)
    assert text == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (77, b"what"),
        (frames.START, b"no json"),
        (frames.START, b"[]"),
        (frames.START, b"{}"),
        (frames.START, b"[" * 100_000),
        (frames.SIGNAL, b"nine"),
        (frames.SIGNAL, b"999"),
        (frames.STOP, b"nan"),
        (frames.PING, b"-1"),
    ],
)
def test_what_no_launch_says_ends_the_agent_and_its_ranks(
    talk: Conversation, await_gone: Callable[[Iterable[int]], None], kind: int, payload: bytes
) -> None:
    talk.start(0, "sh", "-c", "echo $$; exec sleep 60")
    rank = int(talk.hear(frames.OUTPUT))
    talk.send(kind, 1, payload)
    assert talk.process.wait(20) == 0
    await_gone([rank])


def test_a_process_is_started_once(talk: Conversation, await_gone: Callable[[Iterable[int]], None]) -> None:
    talk.start(0, "sh", "-c", "echo $$; exec sleep 60")
    rank = int(talk.hear(frames.OUTPUT))
    talk.start(0, "true")
    assert talk.process.wait(20) == 0
    await_gone([rank])


def test_a_frame_has_a_longest_length() -> None:
    buffer = bytearray(frames.frame(frames.OUTPUT, 0, b"12345"))
    assert list(frames.whole_frames(bytearray(buffer), 5)) == [(frames.OUTPUT, 0, b"12345")]
    with pytest.raises(frames.FrameError, match=r"a frame of 5 bytes \(at most 4\)"):
        list(frames.whole_frames(buffer, 4))


STUBBORN = "trap '' TERM; echo $$; while :; do sleep 1; done"


@pytest.mark.parametrize("how", ["closed", "silence", "killed"])
def test_ranks_end_when_nobody_is_there_any_more(
    talk: Conversation, await_gone: Callable[[Iterable[int]], None], how: str
) -> None:
    talk.start(0, "sh", "-c", STUBBORN)
    rank = int(talk.hear(frames.OUTPUT))
    if how == "silence":
        talk.send(frames.PING, 0, b"0.3")
        assert talk.hear(frames.PONG) == b""
    elif how == "killed":
        talk.process.kill()
    else:
        assert talk.process.stdin is not None
        talk.process.stdin.close()
        talk.process.stdin = None
    talk.process.wait(20)
    await_gone([rank])


def test_much_output_makes_the_rank_wait_and_not_the_agent(talk: Conversation) -> None:
    talk.hear(frames.HELLO)
    talk.start(0, "sh", "-c", "head -c 20000000 /dev/zero")
    talk.send(frames.PING)
    total = 0
    while total < 20_000_000:
        total += len(talk.hear(frames.OUTPUT))
    assert total == 20_000_000
    assert talk.hear(frames.EXIT) == b"0"
