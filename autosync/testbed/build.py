"""Building and removing testbeds, looking after their health, and clearing away what was left behind.

All of it under the lock. A record is written before the first command and marks the testbed whole after the last one;
it is unmarked before anything is removed. So whatever a `kill -9` leaves is known to be left over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosync.errors import OperationError
from autosync.specs.shaping import bucket
from autosync.testbed import holder, processes, records
from autosync.testbed.commands import Runner
from autosync.testbed.layout import INTERFACE, Host, Layout, build_steps, link_step, remove_steps
from autosync.testbed.places import Places
from autosync.testbed.records import Lease, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What is wrong with a testbed, and the hosts that are whole but for a link that was set down."""

    faults: tuple[str, ...]
    cut_off: tuple[Host, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Acts in one set of places while it holds their lock."""

    places: Places
    lock: int

    def build(self, layout: Layout, *, is_kept: bool, leases: tuple[Lease, ...]) -> Record:
        """A whole testbed, or none: whatever stops the building, what was built is removed again."""
        record = Record(layout=layout, is_kept=is_kept, leases=leases)
        records.write(self.places, record)
        try:
            if self.places.rootless:
                holder.start(self.places, layout.key)
            runner = self._runner(layout.key)
            for step in build_steps(layout):
                runner.run(step)
            record = replace(record, is_whole=True)
            records.write(self.places, record)
        except BaseException:
            self.remove(layout.key)
            raise
        return record

    def remove(self, key: str) -> None:
        """End the testbed's processes and take away its links, namespaces and record, as far as they are there."""
        record = records.read(self.places, key)
        if record is not None and record.is_whole:
            records.write(self.places, replace(record, is_whole=False))
        names = self.places.existing(key)
        files = (self.places.namespace(key, name) for name in names)
        processes.end_all([found for file in files if (found := processes.namespace_id(file)) is not None])
        runner = self._runner(key)
        switch = next((name for name in names if name.endswith("-switch")), "")
        for step in remove_steps(switch, names):
            runner.run(step)
        if self.places.rootless:
            holder.end(self.places, key)
        left = self.places.existing(key)
        if left:
            raise OperationError(f"namespaces cannot be removed: {', '.join(left)}")
        self.places.record(key).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what was left behind: by whoever was killed while building, removing or using a testbed."""
        for key in self.places.recorded():
            record = records.read(self.places, key)
            if record is None or record.is_left_over:
                self.remove(key)
        for key in self.places.unrecorded() | (holder.keys(self.places) - set(self.places.recorded())):
            self.remove(key)

    def repair(self, layout: Layout, hosts: tuple[Host, ...]) -> None:
        """Put cables back that were pulled."""
        for host in hosts:
            self._runner(layout.key).run(link_step(layout, host, up=True))

    def _runner(self, key: str) -> Runner:
        return Runner(enter=self.places.manage(key), lock=self.lock)


def check_health(places: Places, layout: Layout) -> Health:
    """Compare a testbed with its layout: namespaces, links, addresses and rates."""
    gone = set(layout.namespaces) - set(places.existing(layout.key))
    if gone or (places.rootless and not holder.is_alive(places, layout.key)):
        return Health(faults=(f"namespaces are gone: {', '.join(sorted(gone)) or 'all'}",))
    runner = Runner(enter=places.manage(layout.key))
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


def _switch_rates(layout: Layout) -> dict[str, float]:
    ports = {host.port: host.bandwidth_in for host in layout.hosts}
    ports |= {uplink.port: uplink.out for uplink in layout.uplinks}
    return ports | {uplink.spine_port: uplink.into for uplink in layout.uplinks}


def _host_faults(runner: Runner, host: Host) -> list[str]:
    faults = []
    if _rates(runner, host.namespace).get(INTERFACE) != bucket(host.bandwidth_out).rate:
        faults.append(f"{host.node} does not send at {bucket(host.bandwidth_out).rate} B/s")
    found = runner.query("ip", "-json", "-n", host.namespace, "address", "show", "dev", INTERFACE) or []
    if host.address not in {address.get("local") for link in found for address in link["addr_info"]}:
        faults.append(f"{host.node} has not the address {host.address}")
    return faults


def _rates(runner: Runner, namespace: str) -> dict[str, int]:
    """The rate of each token bucket in a namespace, by interface."""
    found = runner.query("tc", "-json", "-n", namespace, "qdisc", "show") or []
    return {item["dev"]: item["options"]["rate"] for item in found if item["kind"] == "tbf"}
