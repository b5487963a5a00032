"""`autosync serve`: the process of a node that only serves, beside the workers' training."""

from __future__ import annotations

import atexit
import os
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
    "--node", required=True, envvar="AUTOSYNC_NODE", metavar="NAME", help="The name of this node in the cluster."
)
@click.option(
    "--rendezvous",
    default="env://",
    show_default=True,
    metavar="URL",
    help="Where workers meet: env:// (MASTER_ADDR and MASTER_PORT), tcp://HOST:PORT or file:///PATH.",
)
@click.option(
    "--open", "is_open", is_flag=True, help="Without AUTOSYNC_SECRET: serve any process that reaches the rendezvous."
)
@click.option("--once", is_flag=True, help="End after one training.")
@click.option(
    "--timeout",
    "timeout_seconds",
    default=300.0,
    show_default=True,
    type=click.FloatRange(min=1.0),
    metavar="SECONDS",
    help="The longest wait for another rank within a step.",
)
def serve(bundle: Path, *, node: str, rendezvous: str, is_open: bool, once: bool, timeout_seconds: float) -> None:
    """Serve trainings with BUNDLE one after the other, until the workers' store at --rendezvous is gone.

    Workers call autosync.parallelize with the same bundle and have the same AUTOSYNC_SECRET in their environment. A
    server joins a training only if its first worker knows the secret. `autosync launch` sets all of this. Servers may
    start before or after the workers. The environment variables AUTOSYNC_BUNDLE and AUTOSYNC_NODE are the defaults of
    BUNDLE and --node.
    """
    from autosync.strategy.bundle import load_bundle

    loaded = load_bundle(bundle)
    # This import loads torch, so it waits until the file has been checked.
    from autosync.runtime.serving.rendezvous import open_store, resolve
    from autosync.runtime.serving.sealed_letters import shared_secret
    from autosync.runtime.serving.serve import Server, serve_all

    _check_secret(shared_secret(), is_open=is_open)
    server = Server(loaded, node=node, timeout_seconds=timeout_seconds)
    place = resolve(rendezvous)
    note(f"node {node} serves under {bundle} (strategy {loaded.strategy_id}): waiting for workers at {place}")
    interruptible(lambda: serve_all(server, open_store(place), once=once, told=note))


def _check_secret(secret: str, *, is_open: bool) -> None:
    """Raise unless there is a secret for workers, or the user has opened the server to any worker."""
    from autosync.errors import InputError
    from autosync.signatures import SECRET_VARIABLE

    if secret and is_open:
        raise InputError(f"--open is given, and {SECRET_VARIABLE} is set", rule="one of the two")
    if not secret and not is_open:
        raise InputError(
            f"{SECRET_VARIABLE} is not set",
            rule="a server joins the training of workers that know its secret",
            hint=f"export {SECRET_VARIABLE}=$(openssl rand -hex 32) once, and have the same on workers and servers; "
            "or say --open, and any process that reaches the workers' store may call this server",
        )


def interruptible(work: Callable[[], None]) -> None:
    """Work in another thread, because a thread that waits in torch does not react to signals."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again where it belongs
            errors.append(error)

    thread = threading.Thread(target=run, name="autosync-serve", daemon=True)
    try:
        thread.start()
        thread.join()
    except KeyboardInterrupt:
        # The thread may wait in torch. If it woke while Python ends, it would abort the process. So the process ends as
        # soon as everything is printed, with the code of an interrupted command.
        atexit.register(os._exit, 130)
        raise
    if errors:
        raise errors[0]
