"""Testbeds that are up: bringing one up, using it, looking at it, taking it down.

Whoever uses a testbed has a lease. The last one out takes it down, unless it is kept (`autosync testbed up`). Leases of
processes that have ended are void, and whatever nobody uses is removed by the next `up` or `down`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from types import TracebackType
from typing import Self

from autosync.errors import OperationError, UnknownNameError
from autosync.specs.cluster import ClusterSpec
from autosync.testbed import processes, records
from autosync.testbed.build import Builder, check_health
from autosync.testbed.commands import Runner
from autosync.testbed.layout import INTERFACE, NUM_SLOTS, Host, Layout, cluster_key, link_step, plan_layout
from autosync.testbed.places import Places
from autosync.testbed.processes import Running
from autosync.testbed.records import Lease, Record
from autosync.testbed.support import find_places


class Testbed:
    """A testbed that is up. As a context manager it gives its lease back at the end.

    May be used from several threads; a process that forks must not use it in both halves.
    """

    # It is no test, whatever its name begins with.
    __test__ = False

    def __init__(self, layout: Layout, places: Places, lease: Lease | None = None) -> None:
        self.layout = layout
        self._places = places
        self._lease = lease
        self._hosts = {host.node: host for host in layout.hosts}
        self._runner = Runner(enter=places.manage(layout.key))

    interface = INTERFACE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def address(self, node: str) -> str:
        """The IPv4 address of a node."""
        return self._host(node).address

    def namespace(self, node: str) -> str:
        """The name of a node's network namespace."""
        return self._host(node).namespace

    def enter(self, node: str) -> tuple[str, ...]:
        """The words before a command that make it run in a node's host."""
        return self._places.enter(self.layout.key, self.namespace(node))

    def counters(self) -> dict[str, tuple[int, int]]:
        """Bytes that each node has sent and received over its link, headers included, since it is up."""
        links = self._runner.query("ip", "-json", "-stats", "-n", self.layout.switch, "link", "show")
        if links is None:
            raise OperationError(f"the testbed of {self.layout.name} is gone")
        # Seen from the switch: what it received the host has sent.
        ports = {link["ifname"]: (link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"]) for link in links}
        return {host.node: ports[host.port] for host in self.layout.hosts if host.port in ports}

    def processes(self) -> dict[str, list[Running]]:
        """What runs in each node's host."""
        files = {host.node: self._places.namespace(self.layout.key, host.namespace) for host in self.layout.hosts}
        ids = {found: node for node, file in files.items() if (found := processes.namespace_id(file)) is not None}
        return {node: [] for node in files} | processes.running_in(ids)

    def set_link(self, node: str, *, up: bool) -> None:
        """Pull a node's cable out of the switch, or put it back."""
        self._runner.run(link_step(self.layout, self._host(node), up=up))

    def faults(self) -> tuple[str, ...]:
        """What differs from the layout; links that are set down among it."""
        health = check_health(self._places, self.layout)
        return (*health.faults, *(f"the link of {host.node} is down" for host in health.cut_off))

    def close(self) -> None:
        """Give the lease back; the last one takes the testbed down unless it is kept. Harmless when repeated."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        with records.locked(self._places) as lock:
            record = records.read(self._places, self.layout.key)
            if record is None or lease not in record.leases:
                return
            record = replace(record, leases=tuple(user for user in record.users if user != lease))
            records.write(self._places, record)
            if record.is_left_over:
                Builder(places=self._places, lock=lock).remove(self.layout.key)

    def down(self, *, force: bool = False) -> None:
        """Take the testbed down, kept or not; refused while another process uses it, unless forced."""
        self._lease = None
        with records.locked(self._places) as lock:
            record = records.read(self._places, self.layout.key)
            if record is not None:
                _remove_all([record], Builder(places=self._places, lock=lock), force=force)

    def _host(self, node: str) -> Host:
        if node not in self._hosts:
            raise UnknownNameError("node", node, self._hosts)
        return self._hosts[node]


def up(cluster: ClusterSpec, *, keep: bool = False) -> Testbed:
    """The testbed of a cluster: the one that is up if it is whole, else a new one. `keep` makes it stay without users.

    The lease is this process's until `close`; with `keep` there is none.
    """
    places = find_places()
    key = cluster_key(cluster)
    with records.locked(places) as lock:
        builder = Builder(places=places, lock=lock)
        builder.sweep()
        lease = None if keep else records.new_lease()
        leases = () if lease is None else (lease,)
        record = _reusable(builder, key)
        if record is not None:
            record = replace(record, is_kept=record.is_kept or keep, leases=(*record.users, *leases))
            records.write(places, record)
            return Testbed(record.layout, places, lease)
        if keep:
            # The file has been edited since: what was kept for it then is of no use now.
            old = [r for r in records.read_all(places) if r.layout.name == cluster.name and not r.users]
            _remove_all(old, builder, force=False)
        record = builder.build(plan_layout(cluster, _free_slot(places)), is_kept=keep, leases=leases)
    return Testbed(record.layout, places, lease)


def find(cluster: ClusterSpec) -> Testbed:
    """The testbed of a cluster that is up, without a lease."""
    places = find_places()
    record = records.read(places, cluster_key(cluster))
    if record is None or not record.is_whole:
        same_name = any(other.layout.name == cluster.name for other in records.read_all(places))
        why = "; the one that is up was built from another content of the file" if same_name else ""
        raise OperationError(f"no testbed of {cluster.name} is up{why}")
    return Testbed(record.layout, places)


def planned(cluster: ClusterSpec) -> Layout:
    """The layout that `up` would build, or has built."""
    places = find_places()
    record = records.read(places, cluster_key(cluster))
    return plan_layout(cluster, _free_slot(places)) if record is None else record.layout


def find_all() -> list[tuple[Testbed, Record]]:
    """All testbeds of this user that are up, with their records."""
    places = find_places()
    return [(Testbed(record.layout, places), record) for record in records.read_all(places) if record.is_whole]


def down(cluster: ClusterSpec | None = None, *, force: bool = False) -> list[str]:
    """Take down the testbeds of a cluster's name, or all; what was left behind goes too. The names of those removed.

    Refused while a process uses one of them, unless forced.
    """
    places = find_places()
    with records.locked(places) as lock:
        builder = Builder(places=places, lock=lock)
        builder.sweep()
        chosen = [r for r in records.read_all(places) if cluster is None or r.layout.name == cluster.name]
        return _remove_all(chosen, builder, force=force)


def describe_users(users: tuple[Lease, ...]) -> str:
    """The processes that use a testbed, once each."""
    return ", ".join(dict.fromkeys(str(lease.pid) for lease in users))


def _remove_all(chosen: list[Record], builder: Builder, *, force: bool) -> list[str]:
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


def _reusable(builder: Builder, key: str) -> Record | None:
    """The whole testbed of that key, its cables put back; one that is damaged is removed."""
    record = records.read(builder.places, key)
    if record is None:
        return None
    health = check_health(builder.places, record.layout)
    if not health.faults:
        builder.repair(record.layout, health.cut_off)
        return record
    others = tuple(lease for lease in record.users if lease.pid != os.getpid())
    if others:
        used = f"process {describe_users(others)} uses it"
        raise OperationError(f"the testbed of {record.layout.name} is damaged ({health.faults[0]}) and {used}")
    builder.remove(key)
    return None


def _free_slot(places: Places) -> int:
    taken = {record.layout.slot for record in records.read_all(places)}
    free = next((slot for slot in range(NUM_SLOTS) if slot not in taken), None)
    if free is None:
        raise OperationError(f"{NUM_SLOTS} testbeds are up: there is no subnet for another")
    return free
