"""Builds, checks, repairs and removes testbeds, and removes the remains that killed processes left behind.

All changes happen under the lock. A testbed's record is written before the first command, and is marked whole after the
last command; the mark is removed before the testbed is taken down. So the remains after a `kill -9` can always be
recognised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosync.errors import OperationError
from autosync.specs.shaping import bucket
from autosync.testbed import namespace_holder, processes, records
from autosync.testbed.commands import Runner
from autosync.testbed.folders import NamespaceFolders
from autosync.testbed.layout import INTERFACE, Host, NetworkLayout, build_calls, link_call, removal_calls
from autosync.testbed.records import Lease, TestbedRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The faults of a testbed, and the hosts whose link was set down."""

    faults: tuple[str, ...]
    cut_off: tuple[Host, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedBuilder:
    """Builds and removes testbeds in `folders` while it holds their lock."""

    __test__ = False

    folders: NamespaceFolders
    lock: int

    def build(
        self, layout: NetworkLayout, *, is_kept: bool, leases: tuple[Lease, ...], file: str | None = None
    ) -> TestbedRecord:
        """Build a whole testbed. If anything fails, the testbed is removed again."""
        record = TestbedRecord(layout=layout, is_kept=is_kept, leases=leases, file=file)
        records.write(self.folders, record)
        try:
            if self.folders.rootless:
                namespace_holder.start(self.folders, layout.key)
            runner = self._runner(layout.key)
            for call in build_calls(layout):
                runner.run(call)
            record = replace(record, is_whole=True)
            records.write(self.folders, record)
        except BaseException:
            self.remove(layout.key)
            raise
        return record

    def remove(self, key: str) -> None:
        """End a testbed's processes, and remove its links, namespaces and record, as far as these exist."""
        record = records.read(self.folders, key)
        if record is not None and record.is_whole:
            records.write(self.folders, replace(record, is_whole=False))
        names = self.folders.existing(key)
        files = (self.folders.namespace(key, name) for name in names)
        processes.end_all([found for file in files if (found := processes.namespace_id(file)) is not None])
        runner = self._runner(key)
        switch = next((name for name in names if name.endswith("-switch")), "")
        for call in removal_calls(switch, names):
            runner.run(call)
        if self.folders.rootless:
            namespace_holder.end(self.folders, key)
        left = self.folders.existing(key)
        if left:
            raise OperationError(f"namespaces cannot be removed: {', '.join(left)}")
        self.folders.record(key).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove testbeds that were left over because the processes that built, removed or used them were killed."""
        for key in self.folders.recorded():
            record = records.read(self.folders, key)
            if record is None or record.is_left_over:
                self.remove(key)
        for key in self.folders.unrecorded() | (namespace_holder.keys(self.folders) - set(self.folders.recorded())):
            self.remove(key)

    def repair(self, layout: NetworkLayout, hosts: tuple[Host, ...]) -> None:
        """Set the links of these hosts up again."""
        for host in hosts:
            self._runner(layout.key).run(link_call(layout, host, up=True))

    def _runner(self, key: str) -> Runner:
        return Runner(enter=self.folders.manage(key), lock=self.lock)


def check_health(folders: NamespaceFolders, layout: NetworkLayout) -> Health:
    """Compare a testbed with its layout: namespaces, links, addresses and rates."""
    gone = set(layout.namespaces) - set(folders.existing(layout.key))
    if gone or (folders.rootless and not namespace_holder.is_alive(folders, layout.key)):
        return Health(faults=(f"namespaces are gone: {', '.join(sorted(gone)) or 'all'}",))
    runner = Runner(enter=folders.manage(layout.key))
    links = runner.query("ip", "-json", "-n", layout.switch, "link", "show") or []
    flags = {link["ifname"]: link["flags"] for link in links}
    rates = _rates(runner, layout.switch)
    faults = [
        f"{port} does not carry {bucket(rate).rate} B/s"
        for port, rate in _switch_rates(layout).items()
        if rates.get(port) != bucket(rate).rate
    ]
    cut_off = tuple(host for host in layout.hosts if "UP" not in flags.get(host.port, ["UP"]))
    for host in layout.hosts:
        if host not in cut_off and "LOWER_UP" not in flags.get(host.port, []):
            faults.append(f"{host.node} has no link")
        faults += _host_faults(runner, host)
    return Health(faults=tuple(faults), cut_off=cut_off)


def _switch_rates(layout: NetworkLayout) -> dict[str, float]:
    ports = {host.port: host.bandwidth_in for host in layout.hosts}
    ports |= {uplink.port: uplink.out for uplink in layout.uplinks}
    return ports | {uplink.upper_port: uplink.into for uplink in layout.uplinks}


def _host_faults(runner: Runner, host: Host) -> list[str]:
    faults = []
    if _rates(runner, host.namespace).get(INTERFACE) != bucket(host.bandwidth_out).rate:
        faults.append(f"{host.node} does not send at {bucket(host.bandwidth_out).rate} B/s")
    found = runner.query("ip", "-json", "-n", host.namespace, "address", "show", "dev", INTERFACE) or []
    if host.address not in {address.get("local") for link in found for address in link["addr_info"]}:
        faults.append(f"{host.node} has not the address {host.address}")
    return faults


def _rates(runner: Runner, namespace: str) -> dict[str, int]:
    """Return the rate of each token bucket in a namespace, by interface."""
    found = runner.query("tc", "-json", "-n", namespace, "qdisc", "show") or []
    return {item["dev"]: item["options"]["rate"] for item in found if item["kind"] == "tbf"}
