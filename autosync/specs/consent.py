"""Asks the user for consent to actions that files ask for: to run a program, contact a machine, write to a storage.

Everything that the user names on the command line is the user's own wish: a task `FILE.py`, a cluster file with all its
contents, a storage. Everything that only a file names needs consent: the cluster in a bundle; the task, the cluster and
the storage of a study that is resumed. Each of these is a `FileAction`, and `require` asks the user before it is done.
Actions that this user once typed are remembered, and not asked for again. Strategies, models, records and rankers are
data: no part of them is ever run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autosync import jsonio
from autosync.errors import InputError, Problem
from autosync.specs import consent_memory
from autosync.specs.cluster import ClusterSpec
from autosync.specs.launch_options import KubernetesOptions, RayOptions
from autosync.specs.launchers import launcher_traits
from autosync.specs.task_file import is_task, task_path

RULE = "what a file names runs, or is contacted, only where you say so"
HINT = "look at it, then say --trust"
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAction:
    """An action that a file asks for: the `file`, the `place` in it, `what` would be done, and with which `value`.

    Two actions with the same `what` and `value` do the same.
    """

    file: str
    place: str
    what: str
    value: str

    @property
    def key(self) -> str:
        """The hash that is remembered. It does not depend on the file, so a copy of a bundle counts as the bundle."""
        return jsonio.content_hash([self.what, self.value], length=32)

    def __str__(self) -> str:
        value = self.value if len(self.value) <= _SHOWN else f"{self.value[: _SHOWN - 3]}..."
        shown = value if value.isprintable() else ascii(value)[1:-1]
        return f"{self.place}: {self.what}: {shown}"

    def problem(self) -> Problem:
        """Return the problem to report if no user can be asked."""
        return Problem(what=str(self), rule=RULE, hint=HINT, file=self.file, line=1)


Consent = Callable[[Sequence[FileAction]], None]
"""Asks the user about actions; returns if they may be done, and raises an error if not."""


def refuse(actions: Sequence[FileAction]) -> None:
    """Refuse all actions by raising InputError: the consent of a process that cannot ask the user."""
    raise InputError([action.problem() for action in actions])


def agree(_actions: Sequence[FileAction]) -> None:
    """Allow all actions: the consent of a user who has given `--trust`."""


def unconfirmed(actions: Sequence[FileAction]) -> list[FileAction]:
    """Return the actions that this user has never typed."""
    known = consent_memory.recall() if actions else frozenset()
    return [action for action in actions if action.key not in known]


def require(actions: Sequence[FileAction], consent: Consent) -> None:
    """Ask for consent to the actions that this user has never typed; `consent` raises an error if it is not given."""
    if asked := unconfirmed(actions):
        consent(asked)


def remember(actions: Sequence[FileAction]) -> None:
    """Remember actions that the user typed, so that they need no consent when a file names them."""
    consent_memory.remember(action.key for action in actions)


def cluster_actions(cluster: ClusterSpec, *, file: str, place: str = "cluster") -> list[FileAction]:
    """Return the actions of a launch on a cluster: programs that run, and machines that are reached."""
    return [
        FileAction(file=file, place=f"{place}.{field}" if place else field, what=what, value=value)
        for field, what, value in _of_cluster(cluster)
    ]


def task_actions(target: str, *, file: str, place: str = "task") -> list[FileAction]:
    """Return the action of running a task's Python file; none if the target names a model spec."""
    if not is_task(target):
        return []
    path = os.path.realpath(task_path(target))
    return [FileAction(file=file, place=place, what="this Python file would be run", value=path)]


def storage_actions(url: str | None, *, file: str, place: str = "storage", is_written: bool = True) -> list[FileAction]:
    """Return the action of using a storage outside the study's folder.

    A file of records that is only read is data and needs no consent.
    """
    is_file = url is None or "://" not in url or url.startswith("sqlite")
    if url is None or (is_file and not is_written):
        return []
    what = "this storage would be written to" if is_written else "this storage would be contacted"
    return [FileAction(file=file, place=place, what=what, value=url)]


def link_action(path: Path, *, file: str, place: str) -> FileAction:
    """Return the action of writing through a link in a study's folder."""
    return FileAction(file=file, place=place, what="this would be written to, through a link", value=str(path))


def _of_cluster(cluster: ClusterSpec) -> Iterator[tuple[str, str, str]]:
    is_here = cluster.is_one_machine
    hosts = ", ".join(dict.fromkeys(node.host for node in cluster.nodes))
    where = "this machine" if is_here else hosts
    if cluster.python is not None and not (is_here and cluster.python == sys.executable):
        yield "python", f"ranks would run this Python ({cluster.launcher})", f"{_program(cluster)} on {where}"
    match cluster.launcher_options:
        case KubernetesOptions() as options:
            yield from _of_pods(options)
        case RayOptions(address=address):
            yield "ray.address", "this Ray cluster would be contacted", address
    if not is_here:
        yield "nodes", f"these machines would be reached {launcher_traits(cluster.launcher).way}", hosts


def _program(cluster: ClusterSpec) -> str:
    """Return the Python of the ranks. A path on this machine is made absolute: a relative one depends on the folder."""
    program = str(cluster.python)
    is_path = cluster.is_one_machine and "/" in program
    return str(Path(program).absolute()) if is_path else program


def _of_pods(options: KubernetesOptions) -> Iterator[tuple[str, str, str]]:
    context = "the current context" if options.context is None else f"the context {options.context}"
    where = f"{options.image} in the namespace {options.namespace} of {context}"
    yield "kubernetes.image", "pods would run this image", where
    if options.kind == "trainjob":
        yield "kubernetes.runtime", "a TrainJob would run by this runtime", options.runtime
    for section in ("container", "pod"):
        fields = getattr(options, section)
        if fields:
            text = json.dumps(dict(fields), sort_keys=True, default=str)
            yield f"kubernetes.{section}", f"the {section} would have these fields", text
