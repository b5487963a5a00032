"""Checks that all nodes are fit for trials: before the first trial on other nodes, and in `autosync cluster check`.

A program on every node (`node_report`) reports versions, memory and disk, and each node tries to reach others. When
nodes differ, a finding names the node that differs from most.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from autosync import __version__, units
from autosync.errors import OperationError
from autosync.launchers.environment import python_of
from autosync.launchers.log_tail import last_line
from autosync.launchers.request import Launch, Launcher, Process
from autosync.specs.cluster import ClusterSpec
from autosync.specs.launchers import LAUNCHERS
from autosync.strategy.wording import format_table

POLL_SECONDS = 0.05
TELL_SECONDS = 30.0
REACH_SECONDS = 25.0
LEAST_DISK_BYTES = 64 * 2**20
LEAST_MEMORY_BYTES = 2**30
MAX_PEERS = 16
"""The number of following nodes that each node tries to reach, besides the first node."""

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinding:
    """A finding about a node; an error if no trial could succeed on the node."""

    node: str
    severity: Severity
    words: str

    def __str__(self) -> str:
        return f"{self.node} {self.words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The report of a node."""

    node: str
    host: str
    python: str
    torch: str
    autosync: str
    interface: str
    free_memory_bytes: int | None
    free_disk_bytes: Mapping[str, int]
    files: Mapping[str, str]
    unreachable: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCheck:
    """The reports of all nodes and the findings, errors first."""

    nodes: tuple[NodeFacts, ...]
    findings: tuple[NodeFinding, ...]

    @property
    def errors(self) -> tuple[NodeFinding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def table(self) -> str:
        """Format a table with one line for each node."""
        rows = [
            (
                facts.node,
                facts.python,
                facts.torch or "none",
                facts.autosync or "none",
                facts.interface or "?",
                "all" if not facts.unreachable else f"all but {', '.join(facts.unreachable)}",
                "?" if facts.free_memory_bytes is None else units.format_size(facts.free_memory_bytes),
                units.format_size(min(facts.free_disk_bytes.values(), default=0)),
            )
            for facts in self.nodes
        ]
        header = ("node", "python", "torch", "autosync", "interface", "reaches", "free memory", "free disk")
        return format_table(rows, header=header)


def check_nodes(cluster: ClusterSpec, folder: Path, *, files: Sequence[Path] = ()) -> ClusterCheck:
    """Check every node of a cluster. `files` are the user's files; every node must have the same versions of them."""
    launcher: Launcher = LAUNCHERS.get(cluster.launcher)()
    with launcher.hold(cluster):
        told, processes, launch = _tell(launcher, cluster, folder / "facts", files)
        try:
            unreachable = _reach(launcher, cluster, folder / "reach", _peers(cluster, processes, told))
        finally:
            launch.stop()
    nodes = tuple(
        NodeFacts(
            node=process.node,
            host=process.host,
            unreachable=away,
            **{key: facts[key] for key in ("python", "torch", "autosync", "interface", "files")},
            free_memory_bytes=facts["free_memory_bytes"],
            free_disk_bytes=facts["free_disk_bytes"],
        )
        for process, facts, away in zip(processes, told, unreachable, strict=True)
    )
    found = sorted(find(nodes, files), key=lambda finding: finding.severity)
    return ClusterCheck(nodes=nodes, findings=tuple(found))


def require_fit_nodes(cluster: ClusterSpec, folder: Path, *, files: Sequence[Path] = ()) -> None:
    """Raise OperationError if no trial could succeed on the cluster. Writes the table of nodes to nodes.txt."""
    checked = check_nodes(cluster, folder, files=files)
    (folder / "nodes.txt").write_text(checked.table() + "\n", "utf-8")
    if checked.errors:
        raise OperationError(f"{'; '.join(map(str, checked.errors))} (all nodes: {folder / 'nodes.txt'})")


def _plan(launcher: Launcher, cluster: ClusterSpec, folder: Path, arguments: Mapping[str, Sequence[str]]) -> Any:
    """Return the request that runs the report program once on every node, with the arguments of that node."""
    source = resources.files("autosync.launchers").joinpath("node_report.py").read_text("utf-8")
    # Only the arguments, which are added below, differ from node to node.
    request = launcher.plan(cluster, (python_of(cluster), "-P", "-c", source), folder)
    leaders = [cluster.leader(position) for position in range(len(cluster.nodes))]
    processes = tuple(
        replace(process, command=(*process.command, *arguments[process.node]))
        for process in (request.processes[leader] for leader in leaders)
    )
    return replace(request, processes=processes)


def _tell(
    launcher: Launcher, cluster: ClusterSpec, folder: Path, files: Sequence[Path]
) -> tuple[list[dict[str, Any]], tuple[Process, ...], Launch]:
    """Start the report program; return the reports of all nodes, its processes, and its launch, which still listens."""
    arguments = dict.fromkeys((node.name for node in cluster.nodes), ("tell", *(str(f.resolve()) for f in files)))
    request = _plan(launcher, cluster, folder, arguments)
    launch = launcher.start(request)
    try:
        answers = _await_lines(request.processes, launch, num_lines=2, seconds=TELL_SECONDS)
    except BaseException:
        launch.stop()
        raise
    return [facts | port for facts, port in answers], request.processes, launch


def _reach(
    launcher: Launcher, cluster: ClusterSpec, folder: Path, peers: Mapping[str, Mapping[str, tuple[str, int]]]
) -> list[dict[str, str]]:
    """Return the peers that each node cannot reach, with the reasons."""
    arguments = {node: ("reach", json.dumps(others)) for node, others in peers.items()}
    request = _plan(launcher, cluster, folder, arguments)
    launch = launcher.start(request)
    try:
        answers = _await_lines(request.processes, launch, num_lines=1, seconds=REACH_SECONDS)
    finally:
        launch.stop()
    return [answer["unreachable"] for (answer,) in answers]


def _peers(
    cluster: ClusterSpec, processes: Sequence[Process], told: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, tuple[str, int]]]:
    """Return the peers that each node tries to reach, with their addresses."""
    addresses = LAUNCHERS.get(cluster.launcher)().addresses(cluster)
    places = [(p.node, (addresses[p.node], facts["port"])) for p, facts in zip(processes, told, strict=True)]
    peers = {}
    for position, process in enumerate(processes):
        others = [*places[position + 1 :], *places[:position]][:MAX_PEERS]
        if position and places[0] not in others:
            others.append(places[0])
        peers[process.node] = dict(others)
    return peers


def _await_lines(
    processes: Sequence[Process], launch: Launch, *, num_lines: int, seconds: float
) -> list[list[dict[str, Any]]]:
    """Wait for the JSON lines of every process; raise OperationError with the name of a node that prints too few."""
    deadline = time.monotonic() + seconds
    while True:
        # Exit codes are read first: the output of a process that has ended is complete.
        codes = launch.exit_codes()
        answers = [_lines(process) for process in processes]
        if all(len(answer) >= num_lines for answer in answers):
            return [answer[:num_lines] for answer in answers]
        for why in launch.lost().values():
            raise OperationError(why)
        is_late = time.monotonic() >= deadline
        for process, code, answer in zip(processes, codes, answers, strict=True):
            if len(answer) < num_lines and (code is not None or is_late):
                how = f"no answer within {seconds:g} s" if code is None else f"exit code {code}"
                raise OperationError(f"{process.node} could not be asked: {how}: {last_line(process.log)}")
        time.sleep(POLL_SECONDS)


def _lines(process: Process) -> list[dict[str, Any]]:
    try:
        text = process.log.read_text("utf-8", "replace")
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [json.loads(line) for line in whole if line.startswith("{") and line.endswith("}")]


def find(nodes: Sequence[NodeFacts], files: Sequence[Path] = ()) -> Iterator[NodeFinding]:
    """Yield all findings about the nodes."""
    for facts in nodes:
        for package in ("torch", "autosync"):
            if not getattr(facts, package):
                yield NodeFinding(node=facts.node, severity="error", words=f"has no {package} in Python {facts.python}")
        yield from _in_node(facts)
        yield from _in_files(facts, files)
    yield from _odd_ones(nodes, "torch", "error")
    yield from _odd_ones(nodes, "autosync", "error")
    yield from _odd_ones(nodes, "python", "warning")
    others = {facts.autosync for facts in nodes}
    if len(others) == 1 and others.isdisjoint({"", __version__}):
        words = f"and all others have autosync {others.pop()}, this machine has {__version__}"
        yield NodeFinding(node=nodes[0].node, severity="error", words=words)


def _in_node(facts: NodeFacts) -> Iterator[NodeFinding]:
    for name, why in facts.unreachable.items():
        yield NodeFinding(node=facts.node, severity="error", words=f"cannot reach {name}: {why}")
    for folder, free in facts.free_disk_bytes.items():
        if free < LEAST_DISK_BYTES:
            words = f"has no room on its disk: {units.format_size(free)} free at {folder}"
            yield NodeFinding(node=facts.node, severity="error", words=words)
    if facts.free_memory_bytes is not None and facts.free_memory_bytes < LEAST_MEMORY_BYTES:
        words = f"has {units.format_size(facts.free_memory_bytes)} of memory free"
        yield NodeFinding(node=facts.node, severity="warning", words=words)
    if not facts.interface:
        words = "has no interface that leads to the others: set GLOO_SOCKET_IFNAME there"
        yield NodeFinding(node=facts.node, severity="warning", words=words)


def _in_files(facts: NodeFacts, files: Sequence[Path]) -> Iterator[NodeFinding]:
    for file in files:
        path = str(file.resolve())
        theirs = facts.files.get(path, "")
        if not theirs:
            yield NodeFinding(node=facts.node, severity="error", words=f"has no {path}")
        elif theirs != hashlib.sha256(file.read_bytes()).hexdigest():
            yield NodeFinding(node=facts.node, severity="error", words=f"has another {path} than this machine")


def _odd_ones(nodes: Sequence[NodeFacts], what: str, severity: Severity) -> Iterator[NodeFinding]:
    """Yield a finding for each node whose version differs from that of most nodes."""
    versions = [version for facts in nodes if (version := getattr(facts, what))]
    if len(set(versions)) < 2:
        return
    usual, _ = Counter(versions).most_common(1)[0]
    for facts in nodes:
        version = getattr(facts, what)
        if version and version != usual:
            words = f"has {what} {version}, the others have {usual}"
            yield NodeFinding(node=facts.node, severity=severity, words=words)
