"""`autosync serve`: the process of a node that only serves, beside the workers' training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import click

from autosync.cli.output import note


@click.command(
    epilog="""\b
Examples:
  MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 autosync serve best.yaml --node s0
  autosync serve best.yaml --node s0 --rendezvous tcp://10.0.0.1:29500 --once"""
)
@click.argument("bundle", type=click.Path(path_type=Path), envvar="AUTOSYNC_BUNDLE")
@click.option(
    "--node", required=True, envvar="AUTOSYNC_NODE", metavar="NAME", help="Which of the cluster's nodes this is."
)
@click.option(
    "--rendezvous",
    default="env://",
    show_default=True,
    metavar="URL",
    help="Where workers meet: env:// (MASTER_ADDR and MASTER_PORT), tcp://HOST:PORT or file:///PATH.",
)
@click.option("--once", is_flag=True, help="End after one training.")
@click.option(
    "--timeout",
    "timeout_seconds",
    default=300.0,
    show_default=True,
    type=click.FloatRange(min=1.0),
    metavar="SECONDS",
    help="How long another rank may be late within a step.",
)
def serve(bundle: Path, *, node: str, rendezvous: str, once: bool, timeout_seconds: float) -> None:
    """Serve one training after another that workers do under BUNDLE, until the store where they meet is gone.

    Workers call autosync.parallelize with the same bundle. Servers may be started before them or after. BUNDLE and
    --node default to the environment's AUTOSYNC_BUNDLE and AUTOSYNC_NODE.
    """
    from autosync.strategy.bundle import load_bundle

    loaded = load_bundle(bundle)
    # Loads torch, so it waits until the file is known to be right.
    from autosync.runtime.rendezvous import open_store, resolve
    from autosync.runtime.serve import Server, serve_all

    server = Server(loaded, node=node, timeout_seconds=timeout_seconds)
    place = resolve(rendezvous)
    note(f"node {node} serves under {bundle} (strategy {loaded.strategy_id}): waiting for workers at {place}")
    _interruptible(lambda: serve_all(server, open_store(place), once=once, told=note))


def _interruptible(work: Callable[[], None]) -> None:
    """Work in another thread: one that waits in torch hears no signal."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again where it belongs
            errors.append(error)

    thread = threading.Thread(target=run, name="autosync-serve", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
