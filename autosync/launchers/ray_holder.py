"""The allocation holder of the Ray launcher: it keeps a placement group, and in each bundle an actor with agents.

It is a Ray driver in a separate process; see `allocation_holder`. When it ends, Ray ends everything that it made.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autosync.launchers import allocation_holder, ray_actor
from autosync.launchers.allocation_holder import AllocationError

PIN = 0.001
READY_SECONDS = 60.0
"""The time for Ray to start an actor in a reserved bundle."""
CALL_SECONDS = 20.0
CONNECT_SECONDS = 10.0
NOTE_SECONDS = 15.0
"""The time before the user is told that Ray has no room yet."""


class RayAllocation:
    """The nodes of a placement group."""

    def __init__(self, actors: Sequence[Any], addresses: Mapping[str, str], command: Sequence[str]) -> None:
        self._actors = list(actors)
        self._addresses = addresses
        self._command = list(command)
        self._numbers = itertools.count()

    def addresses(self) -> Mapping[str, str]:
        return self._addresses

    def open(self, position: int) -> RayStream:
        number = next(self._numbers)
        actor = self._actors[position]
        try:
            ray.get(actor.start.remote(number, self._command), timeout=CALL_SECONDS)
        except RayError as error:
            raise AllocationError(_reason(error)) from error
        return RayStream(actor, number)


class RayStream:
    """The stdin and stdout of an agent that an actor started.

    Each call is awaited before the next, because Ray does not keep the order of an actor's calls.
    """

    def __init__(self, actor: Any, number: int) -> None:
        self._actor = actor
        self._number = number
        self._why = ""

    def read(self) -> bytes:
        try:
            return bytes(ray.get(self._actor.read.remote(self._number)))
        except RayError as error:
            self._why = _reason(error)
            return b""

    def write(self, data: bytes) -> None:
        with contextlib.suppress(RayError):
            ray.get(self._actor.write.remote(self._number, data))

    def close(self) -> None:
        # Not awaited: the node may be gone.
        self._actor.close.remote(self._number)

    def last_words(self) -> str:
        if self._why:
            return self._why
        try:
            return str(ray.get(self._actor.said.remote(self._number), timeout=CALL_SECONDS))
        except RayError as error:
            return _reason(error)


@contextlib.contextmanager
def hold(request: Mapping[str, Any], note: Callable[[str], None]) -> Iterator[RayAllocation]:
    """Reserve the bundles and start an actor in each."""
    _connect(request["address"])
    try:
        with _group(request, note) as group:
            actors = _actors(group, request["bundles"], request["nodes"])
            yield RayAllocation(actors, _addresses(group, request["nodes"]), request["command"])
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    where = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    try:
        # Ray itself would try for minutes.
        if place := re.fullmatch(r"\[?([^/\]]+)\]?:(\d+)", where):
            socket.create_connection((place[1], int(place[2])), timeout=CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise AllocationError(f"no Ray cluster can be had at {where}: {_reason(error)}") from error


@contextlib.contextmanager
def _group(request: Mapping[str, Any], note: Callable[[str], None]) -> Iterator[PlacementGroup]:
    bundles = [dict(bundle) for bundle in request["bundles"]]
    if request["hosts"] is not None:
        for name, host, bundle in zip(request["nodes"], request["hosts"], bundles, strict=True):
            bundle.update(_pin(name, host, bundle))
    group = placement_group(bundles, strategy=request["strategy"])
    try:
        told_at = time.monotonic() + NOTE_SECONDS
        ready = group.ready()
        while not ray.wait([ready], timeout=1.0)[0]:
            if time.monotonic() >= told_at:
                told_at = float("inf")
                note(f"waiting for Ray to have room for {len(bundles)} bundles ({request['strategy']}): {bundles}")
        yield group
    finally:
        remove_placement_group(group)


def _pin(name: str, host: str, bundle: Mapping[str, float]) -> dict[str, float]:
    """Return the resource that ties a bundle to a node; raise AllocationError if the node can never hold the bundle."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    found = [n for n in nodes if host in (n["NodeManagerAddress"], n["NodeManagerHostname"], n["NodeName"])]
    if not found:
        known = ", ".join(sorted(node["NodeManagerAddress"] for node in nodes))
        raise AllocationError(f"{name}: no node of the Ray cluster is called {host} (there are {known})")
    lacking = [_lacking(node, bundle) for node in found]
    if all(lacking):
        raise AllocationError(f"{name} ({host}) {lacking[0]}")
    return {f"node:{found[lacking.index('')]['NodeManagerAddress']}": PIN}


def _lacking(node: Mapping[str, Any], bundle: Mapping[str, float]) -> str:
    """Return in words which resource of the bundle a node lacks; empty if it has everything."""
    for resource, amount in bundle.items():
        has = node["Resources"].get(resource, 0)
        if has < amount:
            return f"has {has:g} {resource}, and {amount:g} would be reserved there"
    return ""


def _actors(group: PlacementGroup, bundles: Sequence[Mapping[str, float]], names: Sequence[str]) -> list[Any]:
    # Pickled by value, because nodes may have no autosync.
    ray.cloudpickle.register_pickle_by_value(ray_actor)
    make = ray.remote(ray_actor.RayActor)
    actors = []
    for position, bundle in enumerate(bundles):
        others = {key: value for key, value in bundle.items() if key not in ("CPU", "GPU", "memory")}
        actors.append(
            make.options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                resources=others,
                max_concurrency=ray_actor.MAX_CALLS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=position
                ),
            ).remote()
        )
    for name, actor in zip(names, actors, strict=True):
        try:
            ray.get(actor.__ray_ready__.remote(), timeout=READY_SECONDS)
        except RayError as error:
            raise AllocationError(f"{name}: Ray could not start an actor there: {_reason(error)}") from error
    return actors


def _addresses(group: PlacementGroup, names: Sequence[str]) -> dict[str, str]:
    where = placement_group_table(group)["bundles_to_node_id"]
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return {name: addresses[where[position]] for position, name in enumerate(names)}


def _reason(error: BaseException) -> str:
    """Return Ray's error message on one line, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:400] if lines else type(error).__name__


if __name__ == "__main__":
    allocation_holder.run(hold)
