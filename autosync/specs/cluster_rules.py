"""The rules for cluster specs: names, hosts, roles, racks and declared symmetry.

Every cluster is checked, whether it was read from a file or built in code. Each mistake is a `Problem` with the path
within the spec; readers of files turn the path into a line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from autosync.errors import Path, Problem, did_you_mean
from autosync.specs.calibration import Calibration
from autosync.specs.launchers import LAUNCHERS, shares_loopback

MAX_NODES = 4096
MAX_DEVICES = 1024
MAX_RANKS = 16384
MAX_NICS = 64

# Names and hosts become words of commands (ssh, srun): no character may mean something to a shell or option parser.
_WORD = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_:.%-]{0,252}")
_NAME_RULE = "a name is made of letters, digits and _ : . % - and does not begin with . % or -"
_HOST_RULE = "a host is a name or an address"
_ALIKE_FIELDS = (
    "role",
    "devices",
    "bandwidth_out",
    "bandwidth_in",
    "intra_bandwidth",
    "intra_total",
    "nics",
    "rack",
    "memory_bytes",
    "compute",
)


class NodeFields(Protocol):
    """The fields of a node that the rules check."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def devices(self) -> int: ...
    @property
    def rack(self) -> str | None: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def compute(self) -> float: ...
    @property
    def intra_bandwidth(self) -> float | None: ...
    @property
    def intra_total(self) -> float | None: ...
    @property
    def nics(self) -> int: ...
    @property
    def storage(self) -> float | None: ...


class RackFields(Protocol):
    """The fields of a rack that the rules check."""

    @property
    def name(self) -> str: ...
    @property
    def uplink_out(self) -> float: ...
    @property
    def uplink_in(self) -> float: ...
    @property
    def rack(self) -> str | None: ...


def mistakes(
    *,
    name: str,
    nodes: Sequence[NodeFields],
    racks: Sequence[RackFields],
    alike: Sequence[Sequence[str]],
    launcher: str,
) -> list[Problem]:
    """Return all mistakes of a cluster, except differences between nodes that are declared alike."""
    return [
        *_in_name(name),
        *_in_nodes(nodes),
        *_in_hosts(nodes, launcher),
        *_in_racks(nodes, racks),
        *_in_classes(nodes, alike),
        *_in_launcher(launcher),
    ]


def disagreements(nodes: Sequence[NodeFields], alike: Sequence[Sequence[str]]) -> list[Problem]:
    """Return a problem for each node that differs from nodes that it is declared alike to.

    Call this only if `mistakes` returns none.
    """
    by_name = {node.name: node for node in nodes}
    found = []
    for index, names in enumerate(alike):
        first = by_name[names[0]]
        for place, name in enumerate(names):
            different = [f for f in _ALIKE_FIELDS if getattr(by_name[name], f) != getattr(first, f)]
            if different:
                words = ", ".join(field.removesuffix("_bytes") for field in different)
                found.append(
                    Problem(
                        what=f"{name!r} is not like {first.name!r}: they differ in {words}",
                        rule="alike nodes agree in role, devices, rates, interfaces, rack, memory and compute",
                        path=("alike", index, place),
                    )
                )
    return found


def alike_facts(node: NodeFields) -> tuple[object, ...]:
    """Return the facts in which nodes that are declared alike agree."""
    return tuple(getattr(node, field) for field in _ALIKE_FIELDS)


def strangers(calibration: Calibration, nodes: Sequence[NodeFields], racks: Sequence[RackFields]) -> list[Problem]:
    """Return a problem for each measurement of an unknown node or rack, and for each repeated measurement."""
    nodes_measured = [node.name for node in calibration.nodes]
    racks_measured = [rack.name for rack in calibration.racks]
    return [
        *_strange_names("node", nodes_measured, [node.name for node in nodes]),
        *_strange_names("rack", racks_measured, [rack.name for rack in racks]),
    ]


def _strange_names(kind: str, measured: Sequence[str], known: Sequence[str]) -> Iterator[Problem]:
    there, seen = frozenset(known), set[str]()
    for position, name in enumerate(measured):
        path: Path = ("calibration", f"{kind}s", position, "name")
        if name not in there:
            yield unknown_name(kind, name, known, path)
        elif name in seen:
            yield Problem(what=f"{name!r} is there twice", rule=f"one entry a {kind}", path=path)
        seen.add(name)


def unknown_name(what: str, name: str, known: Iterable[str], path: Path) -> Problem:
    """Return the problem of an unknown name, with the known names and the nearest one."""
    names = list(known)
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return Problem(
        what=f"unknown {what} {name!r}",
        rule=f"known: {shown or 'none'}",
        path=path,
        hint=did_you_mean(name, names),
    )


def _in_name(name: str) -> Iterator[Problem]:
    if not name.strip() or not name.isprintable() or len(name) > 100:
        yield Problem(what=f"{name!r} names no cluster", rule="a name is one line of 1 to 100 signs", path=("name",))


def _in_nodes(nodes: Sequence[NodeFields]) -> Iterator[Problem]:
    seen: set[str] = set()
    for position, node in enumerate(nodes):
        place: Path = ("nodes", position)
        if not _WORD.fullmatch(node.name):
            yield Problem(what=f"{node.name!r} is no node name", rule=_NAME_RULE, path=(*place, "name"))
        elif node.name in seen:
            yield Problem(what=f"{node.name!r} is taken", rule="each node has a name of its own", path=(*place, "name"))
        seen.add(node.name)
        yield from _in_node(node, place)
    if not any(node.role == "worker" for node in nodes):
        yield Problem(what="the cluster has no worker", rule="at least one node has the role worker", path=("nodes",))
    if len(nodes) > MAX_NODES:
        yield Problem(what=f"{len(nodes)} nodes", rule=f"at most {MAX_NODES} nodes", path=("nodes",))
    num_ranks = sum(node.devices if node.role == "worker" else 1 for node in nodes)
    if num_ranks > MAX_RANKS:
        yield Problem(what=f"{num_ranks} ranks", rule=f"at most {MAX_RANKS} ranks", path=("nodes",))


def _in_node(node: NodeFields, place: Path) -> Iterator[Problem]:
    if node.role not in ("worker", "server"):
        yield unknown_name("role", node.role, ("worker", "server"), (*place, "role"))
    elif node.role == "server" and node.devices != 0:
        rule = "devices is 0 or left out where the role is server"
        yield Problem(
            what=f"a server-only node has no devices, not {node.devices}", rule=rule, path=(*place, "devices")
        )
    elif node.role == "worker" and not 1 <= node.devices <= MAX_DEVICES:
        rule = f"a worker has 1 to {MAX_DEVICES} devices, one rank each"
        yield Problem(what=f"{node.devices} devices", rule=rule, path=(*place, "devices"))
    for field in ("bandwidth_out", "bandwidth_in", "intra_bandwidth", "intra_total", "storage"):
        yield from _in_rate(getattr(node, field), (*place, field))
    if node.intra_total is not None and node.intra_bandwidth is not None and node.intra_total < node.intra_bandwidth:
        rule = "all ranks of a node together have at least the rate between two of them (intra_bandwidth)"
        yield Problem(what=f"{node.intra_total:g} bytes per second in all", rule=rule, path=(*place, "intra_total"))
    if not 1 <= node.nics <= MAX_NICS:
        yield Problem(what=f"{node.nics} interfaces", rule=f"1 to {MAX_NICS} interfaces", path=(*place, "nics"))
    if not 0 < node.compute < math.inf:
        yield Problem(what=f"a speed of {node.compute:g}", rule="a finite number above 0", path=(*place, "compute"))
    if node.memory_bytes is not None and node.memory_bytes < 1:
        yield Problem(what=f"{node.memory_bytes} bytes of memory", rule="above 0", path=(*place, "memory"))


def _in_rate(rate: float | None, path: Path) -> Iterator[Problem]:
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        yield Problem(what=f"{rate} bytes per second is no rate", rule="a rate is finite and above 0", path=path)


def _in_hosts(nodes: Sequence[NodeFields], launcher: str) -> Iterator[Problem]:
    """Yield problems with hosts. Nodes may share a host and its interface only if all ranks run on this machine."""
    owners: dict[str, str] = {}
    is_shared = launcher in LAUNCHERS and shares_loopback(launcher)
    for position, node in enumerate(nodes):
        path: Path = ("nodes", position, "host")
        if not _WORD.fullmatch(node.host):
            # A host that is left out is the node's name, which has been checked already.
            if node.host != node.name:
                yield Problem(what=f"{node.host!r} is no host", rule=_HOST_RULE, path=path)
        elif owners.get(node.host, node.name) != node.name and not is_shared:
            rule = "each node has a host of its own, for it has one network interface"
            yield Problem(what=f"{node.host!r} is the host of {owners[node.host]!r} too", rule=rule, path=path)
        owners.setdefault(node.host, node.name)


def _in_racks(nodes: Sequence[NodeFields], racks: Sequence[RackFields]) -> Iterator[Problem]:
    names: set[str] = set()
    for position, rack in enumerate(racks):
        path: Path = ("racks", position, "name")
        if not _WORD.fullmatch(rack.name):
            yield Problem(what=f"{rack.name!r} is no rack name", rule=_NAME_RULE, path=path)
        elif rack.name in names:
            yield Problem(what=f"{rack.name!r} is taken", rule="each rack has a name of its own", path=path)
        names.add(rack.name)
        yield from _in_rate(rack.uplink_out, ("racks", position, "uplink_out"))
        yield from _in_rate(rack.uplink_in, ("racks", position, "uplink_in"))
    for position, node in enumerate(nodes):
        if node.rack is not None and node.rack not in names:
            yield unknown_name("rack", node.rack, [rack.name for rack in racks], ("nodes", position, "rack"))
    yield from _in_pods(racks)


def _in_pods(racks: Sequence[RackFields]) -> Iterator[Problem]:
    """Yield a problem for each rack that does not stand in a pod as it should."""
    pods = {rack.name: rack for rack in racks}
    for position, rack in enumerate(racks):
        path: Path = ("racks", position, "rack")
        if rack.rack is None:
            continue
        if rack.rack not in pods:
            yield unknown_name("rack", rack.rack, [other.name for other in racks], path)
        elif pods[rack.rack].rack is not None:
            rule = "a rack may stand in a pod, and a pod in none"
            yield Problem(what=f"{rack.rack!r} stands in a rack itself", rule=rule, path=path)


def _in_classes(nodes: Sequence[NodeFields], alike: Sequence[Sequence[str]]) -> Iterator[Problem]:
    known = {node.name: None for node in nodes}
    seen: set[str] = set()
    for index, names in enumerate(alike):
        if not names:
            yield Problem(what="a class without nodes", rule="a class names nodes", path=("alike", index))
        for place, name in enumerate(names):
            path: Path = ("alike", index, place)
            if name not in known:
                yield unknown_name("node", name, known, path)
            elif name in seen:
                rule = "a node is named in one class, once; nodes that are counted are a class already"
                yield Problem(what=f"{name!r} is in a class already", rule=rule, path=path)
            seen.add(name)


def _in_launcher(launcher: str) -> Iterator[Problem]:
    if launcher not in LAUNCHERS:
        yield unknown_name("launcher", launcher, LAUNCHERS.names(), ("launcher",))
