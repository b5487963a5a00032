"""Reads and writes cluster files: YAML or JSON.

The file has rates and sizes in words (`500 Mbit/s`, `16 GB`) and groups of nodes (`count: 8`); the spec has bytes per
second, bytes and single nodes. All mistakes of a file are reported together, each with its line. AutoDist's
resource_spec.yml is recognised and read by `resource_spec`. A bare name such as `8-hosts` names a cluster that ships
with the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from autosync import documents, units
from autosync.documents import STRICT, Document
from autosync.errors import DocumentError, InputError, Problem, UnknownNameError, first_problems
from autosync.errors import Path as ValuePath
from autosync.near_files import near_path
from autosync.specs import cluster_repair, cluster_rules, resource_spec
from autosync.specs.calibration import Calibration
from autosync.specs.cluster import BackendName, ClusterSpec, Node, Rack, Role
from autosync.specs.cost_figures import figure_for_file
from autosync.specs.cost_profiles import CostChoice, choice_problems, read_figures
from autosync.specs.launch_options import KubernetesOptions, RayOptions
from autosync.specs.local_hosts import remote_hosts

SCHEMA_KIND = "cluster"
SCHEMA_VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeEntry:
    """An entry of the file for one node or for `count` nodes. Sizes and rates may be any value: `units` checks them."""

    __pydantic_config__ = STRICT

    name: str
    host: str | None = None
    hosts: tuple[str, ...] | None = None
    count: int | None = None
    role: Role = "worker"
    devices: int | None = None
    bandwidth: object = None
    bandwidth_out: object = None
    bandwidth_in: object = None
    intra_bandwidth: object = None
    rack: str | None = None
    memory: object = None
    compute: float = 1.0
    intra_total: object = None
    nics: int = 1
    storage: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _RackEntry:
    __pydantic_config__ = STRICT

    name: str
    uplink: object = None
    uplink_out: object = None
    uplink_in: object = None
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterEntry:
    __pydantic_config__ = STRICT

    name: str | None = None
    launcher: str = "local"
    backend: BackendName = "gloo"
    python: str | None = None
    ray: RayOptions | None = None
    kubernetes: KubernetesOptions | None = None
    racks: tuple[_RackEntry, ...] = ()
    nodes: tuple[_NodeEntry, ...]
    alike: tuple[tuple[str, ...], ...] = ()
    calibration: Calibration | None = None
    costs: Mapping[str, object] | None = None


def load_cluster(path: Path | str, *, is_run: bool = False) -> ClusterSpec:
    """Read the cluster of a file, or the shipped cluster of that bare name.

    With `is_run`, hosts that the cluster's launcher cannot reach are refused: ranks will be started.
    """
    return parse_cluster(documents.read_document(cluster_path(path)), is_run=is_run)


def parse_cluster(document: Document, *, is_run: bool = False) -> ClusterSpec:
    """Return the cluster of a document in our format or in AutoDist's; see `load_cluster`."""
    try:
        if resource_spec.is_resource_spec(document.value):
            return resource_spec.build_cluster(document.value, name=Path(document.file).stem, document=document)
        fields = documents.check_schema(document, kind=SCHEMA_KIND, version=SCHEMA_VERSION)
        return build_cluster(fields, name=Path(document.file).stem, document=document, is_run=is_run)
    except DocumentError:
        raise
    except InputError as error:
        problems = sorted(map(document.locate, error.problems), key=lambda problem: problem.line)
        raise DocumentError(first_problems(problems)) from None


def build_cluster(
    fields: Mapping[str, Any], *, name: str = "cluster", document: Document | None = None, is_run: bool = False
) -> ClusterSpec:
    """Build the cluster from a file's fields without header; `name` is the default name."""
    try:
        entry = documents.from_plain(dict(fields), into=_ClusterEntry, document=document)
    except DocumentError as error:
        raise _with_wrong_values(error, fields, name, document) from None
    return _Builder(entry, name, is_run=is_run).build()


def _with_wrong_values(
    error: DocumentError, fields: Mapping[str, Any], name: str, document: Document | None
) -> DocumentError:
    """Return the error for keys and types with the mistakes in all other values added."""
    try:
        entry = documents.from_plain(cluster_repair.repaired(fields, error.problems), into=_ClusterEntry)
        _Builder(entry, name).build()
    except DocumentError:
        return error
    except InputError as values:
        more = [problem for problem in values.problems if not cluster_repair.is_due_to(problem, error.problems)]
        found = [*error.problems, *(map(document.locate, more) if document else more)]
        return DocumentError(first_problems(sorted(found, key=lambda problem: problem.line)))
    return error


def dump_cluster(cluster: ClusterSpec) -> dict[str, Any]:
    """Return the fields of a file that reads back as the same cluster."""
    return {
        "schema": f"autosync.{SCHEMA_KIND}/{SCHEMA_VERSION}",
        "name": cluster.name,
        "launcher": cluster.launcher,
        "backend": cluster.backend,
        **({"python": cluster.python} if cluster.python else {}),
        **({"ray": documents.to_plain(cluster.ray)} if cluster.ray else {}),
        **({"kubernetes": documents.to_plain(cluster.kubernetes)} if cluster.kubernetes else {}),
        **({"racks": [_dump_rack(rack) for rack in cluster.racks]} if cluster.racks else {}),
        "nodes": [_dump_node(node) for node in cluster.nodes],
        **({"alike": [list(names) for names in cluster.alike]} if cluster.alike else {}),
        **({"costs": _dump_costs(cluster.costs)} if cluster.costs else {}),
        **({"calibration": documents.to_plain(cluster.calibration)} if cluster.calibration else {}),
    }


def save_cluster(path: Path | str, cluster: ClusterSpec) -> None:
    """Write a cluster as YAML, or as JSON if the file name ends in .json."""
    documents.write(path, dump_cluster(cluster))


def shipped_clusters() -> dict[str, Path]:
    """Return the files of the clusters that ship with the package, by name."""
    folder = Path(str(resources.files("autosync.configs"))) / "clusters"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def cluster_path(path: Path | str) -> Path:
    """Return the file, or the shipped cluster's file if `path` is a bare name and no file."""
    given = Path(path)
    is_bare = given.name == str(path) and given.suffix not in (".yaml", ".yml", ".json")
    if given.is_file() or not is_bare:
        return given
    shipped = shipped_clusters()
    if str(path) not in shipped:
        raise UnknownNameError("cluster file or shipped cluster", str(path), shipped, others=[near_path(path)])
    return shipped[str(path)]


def _dump_rack(rack: Rack) -> dict[str, str]:
    home = {} if rack.rack is None else {"rack": rack.rack}
    return {"name": rack.name, **_dump_rates("uplink", rack.uplink_out, rack.uplink_in), **home}


def _dump_node(node: Node) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": node.name}
    if node.host != node.name:
        fields["host"] = node.host
    if node.role == "server":
        fields["role"] = node.role
    elif node.devices != 1:
        fields["devices"] = node.devices
    fields |= _dump_rates("bandwidth", node.bandwidth_out, node.bandwidth_in)
    if node.intra_bandwidth is not None:
        fields["intra_bandwidth"] = units.exact_rate(node.intra_bandwidth)
    if node.intra_total is not None:
        fields["intra_total"] = units.exact_rate(node.intra_total)
    if node.nics != 1:
        fields["nics"] = node.nics
    if node.rack is not None:
        fields["rack"] = node.rack
    if node.memory_bytes is not None:
        fields["memory"] = units.exact_size(node.memory_bytes)
    if node.compute != 1:
        fields["compute"] = node.compute
    if node.storage is not None:
        fields["storage"] = units.exact_rate(node.storage)
    return fields


def _dump_costs(costs: CostChoice) -> dict[str, Any]:
    figures = {name: figure_for_file(name, value) for name, value in costs.figures}
    return {**({"profile": costs.profile} if costs.profile else {}), **figures}


def _dump_rates(key: str, out: float, into: float) -> dict[str, str]:
    if out == into:
        return {key: units.exact_rate(out)}
    return {f"{key}_out": units.exact_rate(out), f"{key}_in": units.exact_rate(into)}


@dataclass(slots=True)
class _Builder:
    """Turns entries into nodes and collects mistakes. A harmless value replaces a wrong one until the end."""

    entry: _ClusterEntry
    default_name: str
    is_run: bool = False
    problems: list[Problem] = field(default_factory=list)

    def build(self) -> ClusterSpec:
        self._check_counts()
        nodes: list[Node] = []
        # The entry of each node in the file: one entry may stand for many nodes.
        origins: list[int] = []
        counted: list[tuple[str, ...]] = []
        for position, entry in enumerate(self.entry.nodes):
            expanded = self._nodes(entry, ("nodes", position))
            nodes += expanded
            origins += [position] * len(expanded)
            if len(expanded) > 1:
                counted.append(tuple(node.name for node in expanded))
        facts: dict[str, Any] = {
            "name": self.default_name if self.entry.name is None else self.entry.name,
            "nodes": tuple(nodes),
            "racks": tuple(self._rack(entry, ("racks", i)) for i, entry in enumerate(self.entry.racks)),
            "alike": (*counted, *self.entry.alike),
            "launcher": self.entry.launcher,
        }
        costs = self._costs()
        try:
            if not self.problems:
                cluster = ClusterSpec(
                    **facts,
                    backend=self.entry.backend,
                    python=self.entry.python,
                    ray=self.entry.ray,
                    kubernetes=self.entry.kubernetes,
                    calibration=self.entry.calibration,
                    costs=costs,
                )
                found = tuple(remote_hosts(cluster)) if self.is_run else ()
                if not found:
                    return cluster
            else:
                found = tuple(cluster_rules.mistakes(**facts))
        except InputError as error:
            found = error.problems
        placed = [p for p in (_in_file(p, origins, len(counted)) for p in found) if p is not None]
        # The nodes of one entry share its mistakes.
        raise InputError(dict.fromkeys([*self.problems, *placed]))

    def _check_counts(self) -> None:
        """Check all counts before nodes are multiplied: one line of a file must not become a million nodes."""
        total = 0
        for position, entry in enumerate(self.entry.nodes):
            count = 1 if entry.count is None else entry.count
            total += max(count, 1)
            if not 1 <= count <= cluster_rules.MAX_NODES:
                rule = f"count is 1 to {cluster_rules.MAX_NODES}"
                raise InputError([Problem(what=f"{count} nodes", rule=rule, path=("nodes", position, "count"))])
        if total > cluster_rules.MAX_NODES:
            rule = f"at most {cluster_rules.MAX_NODES} nodes"
            raise InputError([Problem(what=f"{total} nodes", rule=rule, path=("nodes",))])

    def _nodes(self, entry: _NodeEntry, path: ValuePath) -> list[Node]:
        out, into = self._rates(entry, "bandwidth", path)
        devices = (1 if entry.role == "worker" else 0) if entry.devices is None else entry.devices
        node = Node(
            name=entry.name,
            host=entry.name if entry.host is None else entry.host,
            role=entry.role,
            devices=devices,
            bandwidth_out=out,
            bandwidth_in=into,
            intra_bandwidth=self._value(entry.intra_bandwidth, units.parse_rate, (*path, "intra_bandwidth")),
            rack=entry.rack,
            memory_bytes=self._value(entry.memory, units.parse_size, (*path, "memory")),
            compute=entry.compute,
            intra_total=self._value(entry.intra_total, units.parse_rate, (*path, "intra_total")),
            nics=entry.nics,
            storage=self._value(entry.storage, units.parse_rate, (*path, "storage")),
        )
        hosts = self._hosts(entry, path)
        if entry.count is None:
            return [node]
        return [
            replace(node, name=f"{node.name}-{i}", host=hosts[i] if hosts else f"{node.host}-{i}")
            for i in range(entry.count)
        ]

    def _hosts(self, entry: _NodeEntry, path: ValuePath) -> tuple[str, ...]:
        if entry.hosts is None:
            return ()
        path = (*path, "hosts")
        if entry.count is None:
            self._wrong("a list of hosts for one node", "hosts goes with count, host with a single node", path)
        elif entry.host is not None:
            self._wrong("given beside host", "either host or hosts", path)
        elif len(entry.hosts) != entry.count:
            self._wrong(f"{len(entry.hosts)} hosts for {entry.count} nodes", "one host for each counted node", path)
        else:
            return entry.hosts
        return ()

    def _costs(self) -> CostChoice | None:
        if self.entry.costs is None:
            return None
        words = dict(self.entry.costs)
        profile = words.pop("profile", None)
        if profile is not None and not isinstance(profile, str):
            self._wrong(f"{profile!r} is no name", "profile names a profile of costs", ("costs", "profile"))
            profile = None
        figures, problems = read_figures(words, ("costs",))
        choice = CostChoice(profile=profile, figures=tuple(figures.items()))
        self.problems += [*problems, *choice_problems(choice)]
        return choice

    def _rack(self, entry: _RackEntry, path: ValuePath) -> Rack:
        out, into = self._rates(entry, "uplink", path)
        return Rack(name=entry.name, uplink_out=out, uplink_in=into, rack=entry.rack)

    def _rates(self, entry: _NodeEntry | _RackEntry, key: str, path: ValuePath) -> tuple[float, float]:
        """Return the rates out and in, which the entry gives as one value for both or as two values."""
        both = getattr(entry, key)
        each = {name: getattr(entry, name) for name in (f"{key}_out", f"{key}_in")}
        rule = f"{key} for both directions, or {key}_out and {key}_in"
        if both is not None:
            for name, value in each.items():
                if value is not None:
                    self._wrong(f"given beside {key}", rule, (*path, name))
            rate = self._value(both, units.parse_rate, (*path, key)) or 1.0
            return rate, rate
        missing = [name for name, value in each.items() if value is None]
        if missing:
            self._wrong("is missing", rule, (*path, key if len(missing) == 2 else missing[0]))
        out, into = (self._value(value, units.parse_rate, (*path, name)) or 1.0 for name, value in each.items())
        return out, into

    def _value(self, value: Any, parse: Callable[[Any], T], path: ValuePath) -> T | None:
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            what, _, rule = str(error).partition(" (")
            self._wrong(what, rule.removesuffix(")") or "sizes and rates are given in words", path)
            return None

    def _wrong(self, what: str, rule: str, path: ValuePath) -> None:
        self.problems.append(Problem(what=what, rule=rule, path=path))


def _in_file(problem: Problem, origins: list[int], num_counted: int) -> Problem | None:
    """Return a problem of the spec with its place in the file, or None if it need not be reported.

    In the spec, the classes of counted nodes come before the classes of the file; mistakes in them are already reported
    for the nodes.
    """
    match problem.path:
        case ("nodes", int(position), *rest):
            return replace(problem, path=("nodes", origins[position], *rest))
        case ("alike", int(index), *rest):
            return replace(problem, path=("alike", index - num_counted, *rest)) if index >= num_counted else None
    return problem
