"""Brings testbeds up, uses them, inspects them and takes them down.

Each process that uses a testbed has a lease. The last user takes the testbed down, unless it is kept
(`autosync testbed up`). Leases of processes that have ended are void. The next `up` or `down` removes testbeds without
users.
"""

from __future__ import annotations

import os
from dataclasses import replace
from types import TracebackType
from typing import Self

from autosync.errors import OperationError, UnknownNameError
from autosync.specs.cluster import ClusterSpec
from autosync.testbed import processes, records
from autosync.testbed.build import TestbedBuilder, check_health
from autosync.testbed.commands import Runner
from autosync.testbed.folders import NamespaceFolders
from autosync.testbed.layout import (
    INTERFACE,
    NUM_SLOTS,
    Host,
    NetworkLayout,
    cluster_key,
    link_call,
    plan_layout,
    rate_calls,
)
from autosync.testbed.processes import Running
from autosync.testbed.records import Lease, TestbedRecord
from autosync.testbed.requirements import find_folders


class Testbed:
    """A testbed that is up. As a context manager, it gives its lease back at the end.

    Threads may share it; after a fork, only one of the two processes may use it.
    """

    # Not a test, although its name begins like one.
    __test__ = False

    def __init__(self, layout: NetworkLayout, folders: NamespaceFolders, lease: Lease | None = None) -> None:
        self.layout = layout
        self._folders = folders
        self._lease = lease
        self._hosts = {host.node: host for host in layout.hosts}
        self._runner = Runner(enter=folders.manage(layout.key))

    interface = INTERFACE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def address(self, node: str) -> str:
        """Return the IPv4 address of a node."""
        return self._host(node).address

    def namespace(self, node: str) -> str:
        """Return the name of a node's network namespace."""
        return self._host(node).namespace

    def enter(self, node: str) -> tuple[str, ...]:
        """Return the command prefix that runs a command in a node's host."""
        return self._folders.enter(self.layout.key, self.namespace(node))

    def counters(self) -> dict[str, tuple[int, int]]:
        """Return the bytes, with headers, that each node has sent and received since the testbed was built."""
        links = self._runner.query("ip", "-json", "-stats", "-n", self.layout.switch, "link", "show")
        if links is None:
            raise OperationError(f"the testbed of {self.layout.name} is gone")
        # The switch counts: the bytes that it received are the bytes that the host sent.
        ports = {link["ifname"]: (link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"]) for link in links}
        return {host.node: ports[host.port] for host in self.layout.hosts if host.port in ports}

    def processes(self) -> dict[str, list[Running]]:
        """Return the processes in each node's host."""
        files = {host.node: self._folders.namespace(self.layout.key, host.namespace) for host in self.layout.hosts}
        ids = {found: node for node, file in files.items() if (found := processes.namespace_id(file)) is not None}
        return {node: [] for node in files} | processes.running_in(ids)

    def set_link(self, node: str, *, up: bool) -> None:
        """Set a node's link up or down at the switch."""
        self._runner.run(link_call(self.layout, self._host(node), up=up))

    def set_rates(self, node: str, *, out: float, into: float) -> None:
        """Give a node's link other rates, in bytes per second, for all present users of the testbed."""
        with records.locked(self._folders):
            for call in rate_calls(self.layout, self._host(node), out=out, into=into):
                self._runner.run(call)
            host = replace(self._host(node), bandwidth_out=out, bandwidth_in=into)
            self._hosts[node] = host
            self.layout = replace(self.layout, hosts=tuple(self._hosts.values()))
            record = records.read(self._folders, self.layout.key)
            if record is not None:
                records.write(self._folders, replace(record, layout=self.layout, has_other_rates=True))

    def faults(self) -> tuple[str, ...]:
        """Return the differences from the layout, and the links that are set down."""
        health = check_health(self._folders, self.layout)
        return (*health.faults, *(f"the link of {host.node} is down" for host in health.cut_off))

    def close(self) -> None:
        """Give the lease back. The last user takes the testbed down unless it is kept. May be called again."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        with records.locked(self._folders) as lock:
            record = records.read(self._folders, self.layout.key)
            if record is None or lease not in record.leases:
                return
            record = replace(record, leases=tuple(user for user in record.users if user != lease))
            records.write(self._folders, record)
            if record.is_left_over:
                TestbedBuilder(folders=self._folders, lock=lock).remove(self.layout.key)

    def down(self, *, force: bool = False) -> None:
        """Take the testbed down, kept or not. Raises OperationError while another process uses it, unless forced."""
        self._lease = None
        with records.locked(self._folders) as lock:
            record = records.read(self._folders, self.layout.key)
            if record is not None:
                _remove_all([record], TestbedBuilder(folders=self._folders, lock=lock), force=force)

    def _host(self, node: str) -> Host:
        if node not in self._hosts:
            raise UnknownNameError("node", node, self._hosts)
        return self._hosts[node]


def up(cluster: ClusterSpec, *, keep: bool = False, file: str | None = None) -> Testbed:
    """Bring the testbed of a cluster up: use the existing testbed if it is whole, else build a new one.

    This process has a lease until `close`. With `keep` there is no lease, and the testbed stays up without users.
    `file` is the path of the cluster file for which it is kept.
    """
    folders = find_folders()
    key = cluster_key(cluster)
    with records.locked(folders) as lock:
        builder = TestbedBuilder(folders=folders, lock=lock)
        builder.sweep()
        lease = None if keep else records.new_lease()
        leases = () if lease is None else (lease,)
        record = _reusable(builder, key)
        if record is not None:
            record = replace(record, leases=(*record.users, *leases))
            if keep:
                record = replace(record, is_kept=True, file=file)
            records.write(folders, record)
            return Testbed(record.layout, folders, lease)
        if keep:
            # If the file was edited, testbeds that were kept for its earlier content are useless.
            old = [r for r in records.read_all(folders) if belongs(r, cluster, file) and not r.users]
            _remove_all(old, builder, force=False)
        layout = plan_layout(cluster, _free_slot(folders))
        record = builder.build(layout, is_kept=keep, leases=leases, file=file)
    return Testbed(record.layout, folders, lease)


def find(cluster: ClusterSpec) -> Testbed:
    """Return the testbed of a cluster, which must be up, without taking a lease."""
    folders = find_folders()
    record = records.read(folders, cluster_key(cluster))
    if record is None or not record.is_whole:
        same_name = any(other.layout.name == cluster.name for other in records.read_all(folders))
        why = "; the one that is up was built from another content of the file or another file" if same_name else ""
        raise OperationError(f"no testbed of {cluster.name} is up{why}")
    return Testbed(record.layout, folders)


def planned(cluster: ClusterSpec) -> NetworkLayout:
    """Return the layout that `up` has built or would build."""
    folders = find_folders()
    record = records.read(folders, cluster_key(cluster))
    return plan_layout(cluster, _free_slot(folders)) if record is None else record.layout


def find_all() -> list[tuple[Testbed, TestbedRecord]]:
    """Return all testbeds of this user that are up, with their records."""
    folders = find_folders()
    return [(Testbed(record.layout, folders), record) for record in records.read_all(folders) if record.is_whole]


def belongs(record: TestbedRecord, cluster: ClusterSpec, file: str | None) -> bool:
    """Return whether a testbed was built for this cluster, or is kept for an earlier content of its file.

    Other files may have clusters of the same name. Older versions did not record the file.
    """
    is_of_file = record.is_kept and record.layout.name == cluster.name and record.file in (None, file)
    return is_of_file or record.layout.key == cluster_key(cluster)


def down(cluster: ClusterSpec | None = None, *, file: str | None = None, force: bool = False) -> list[str]:
    """Take down the testbeds of a cluster and its `file`, or all testbeds, and return their names.

    Left-over testbeds are removed too. Raises OperationError while another process uses one of the testbeds, unless
    forced.
    """
    folders = find_folders()
    with records.locked(folders) as lock:
        builder = TestbedBuilder(folders=folders, lock=lock)
        builder.sweep()
        chosen = [r for r in records.read_all(folders) if cluster is None or belongs(r, cluster, file)]
        return _remove_all(chosen, builder, force=force)


def describe_users(users: tuple[Lease, ...]) -> str:
    """Format the ids of the processes that use a testbed, each once."""
    return ", ".join(dict.fromkeys(str(lease.pid) for lease in users))


def _remove_all(chosen: list[TestbedRecord], builder: TestbedBuilder, *, force: bool) -> list[str]:
    for record in chosen:
        others = tuple(lease for lease in record.users if lease.pid != os.getpid())
        if others and not force:
            raise OperationError(
                f"the testbed of {record.layout.name} is used by process {describe_users(others)}: "
                "end that first, or use --force"
            )
    for record in chosen:
        builder.remove(record.layout.key)
    return [record.layout.name for record in chosen]


def _reusable(builder: TestbedBuilder, key: str) -> TestbedRecord | None:
    """Return the existing testbed of a key, with its links set up, or None. A damaged testbed is removed."""
    record = records.read(builder.folders, key)
    if record is None:
        return None
    if record.has_other_rates and not record.users:
        builder.remove(key)
        return None
    health = check_health(builder.folders, record.layout)
    if not health.faults:
        builder.repair(record.layout, health.cut_off)
        return record
    others = tuple(lease for lease in record.users if lease.pid != os.getpid())
    if others:
        used = f"process {describe_users(others)} uses it"
        raise OperationError(f"the testbed of {record.layout.name} is damaged ({health.faults[0]}) and {used}")
    builder.remove(key)
    return None


def _free_slot(folders: NamespaceFolders) -> int:
    taken = {record.layout.slot for record in records.read_all(folders)}
    free = next((slot for slot in range(NUM_SLOTS) if slot not in taken), None)
    if free is None:
        raise OperationError(f"{NUM_SLOTS} testbeds are up: there is no subnet for another")
    return free
