"""Finds the network interface of a node that leads to the other nodes.

The agent carries this module to nodes that may have no autosync: it imports only the standard library, and nothing
needs a Python newer than 3.8.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path
from typing import Any

_GET_ADDRESS = 0x8915


def find_interface(addresses: list[str]) -> str | None:
    """Return the interface that leads to the other nodes. The node's own address comes first in `addresses`."""
    own = _own_addresses()
    for position, host in enumerate(addresses):
        for family, place in _resolved(host) if position == 0 else ():
            if (family, place[0]) in own:
                return own[family, place[0]]
    for host in addresses[1:]:
        for family, place in _resolved(host):
            try:
                with socket.socket(family, socket.SOCK_DGRAM) as probe:
                    # This sends nothing: it only asks the routing table.
                    probe.connect(place)
                    interface = own.get((family, probe.getsockname()[0]))
            except OSError:
                continue
            if interface is not None:
                return interface
    return None


def _resolved(host: str) -> list[tuple[int, Any]]:
    """Return the socket addresses of a host, IPv4 first."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    return sorted([(int(family), place) for family, _, _, _, place in found], key=lambda one: one[0] != socket.AF_INET)


def _own_addresses() -> dict[tuple[int, str], str]:
    """Return the interface of each address of this machine, without loopback."""
    found: dict[tuple[int, str], str] = {}
    for _, name in socket.if_nameindex():
        address = _address_of(name)
        if address is not None:
            found[socket.AF_INET, address] = name
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            found[socket.AF_INET6, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))] = name
    return {address: name for address, name in found.items() if name != "lo"}


def _address_of(interface: str) -> str | None:
    """Return an interface's IPv4 address, or None if it has none."""
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            name = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _GET_ADDRESS, name)[20:24])
    except OSError:
        return None
