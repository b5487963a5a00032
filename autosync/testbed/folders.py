"""The folders of testbeds: where their namespaces and records are, and how a process enters a host.

Root names namespaces as `ip netns` does and keeps records beside them. Other users have both in a user namespace that
a process, the namespace holder, keeps alive; the link KEY.holder leads to it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autosync.errors import OperationError
from autosync.testbed.layout import PREFIX

_NETNS = Path("/run/netns")
_OURS = re.compile(re.escape(PREFIX) + r"([0-9a-f]{8})-(?:switch|[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFolders:
    """The folder of records, and whether namespaces are made without root."""

    folder: Path
    rootless: bool

    def record(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def holder(self, key: str) -> Path:
        """The link to the holder's folder in /proc."""
        return self.folder / f"{key}.holder"

    def log(self, key: str) -> Path:
        """The output of a holder that cannot start."""
        return self.folder / f"{key}.log"

    def recorded(self) -> list[str]:
        """The keys of testbeds with a record."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def namespace(self, key: str, name: str) -> Path:
        """The file of a namespace."""
        return self._names(key) / name

    def enter(self, key: str, namespace: str) -> tuple[str, ...]:
        """The command prefix that runs a command in a host."""
        user = ("--preserve-credentials", f"--user={self.holder(key)}/ns/user") if self.rootless else ()
        return ("nsenter", *user, f"--net={self.namespace(key, namespace)}")

    def manage(self, key: str) -> tuple[str, ...]:
        """The command prefix that runs `ip` and `tc` where the namespaces are."""
        if not self.rootless:
            return ()
        at = self.holder(key) / "ns"
        return ("nsenter", "--preserve-credentials", f"--user={at}/user", f"--mount={at}/mnt", f"--net={at}/net")

    def existing(self, key: str) -> tuple[str, ...]:
        """The namespaces of a testbed that exist."""
        return tuple(sorted(name for found, name in self._scan(key) if found == key))

    def unrecorded(self) -> set[str]:
        """The keys of namespaces without a record. Without root there are none: namespaces end with their holder."""
        return set() if self.rootless else {key for key, _ in self._scan("")} - set(self.recorded())

    def _names(self, key: str) -> Path:
        return self.holder(key) / "root/run/netns" if self.rootless else _NETNS

    def _scan(self, key: str) -> Iterator[tuple[str, str]]:
        try:
            names = [path.name for path in self._names(key).iterdir()]
        except OSError:
            return
        for name in names:
            match = _OURS.fullmatch(name)
            if match:
                yield match[1], name


def root_folders() -> NamespaceFolders:
    """Root's folders, beside the namespaces that all its testbeds share."""
    return NamespaceFolders(folder=_private_folder(Path("/run/autosync")), rootless=False)


def user_folders() -> NamespaceFolders:
    """A folder in the user's runtime folder, or in /tmp where the system has none."""
    uid = os.geteuid()
    given = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(given) / "autosync" if given else Path(f"/tmp/autosync-{uid}")  # noqa: S108 - owner is checked
    return NamespaceFolders(folder=_private_folder(folder), rootless=True)


def _private_folder(folder: Path) -> Path:
    """A folder that no other user can have prepared: commands are read from it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise OperationError(f"{folder} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise OperationError(f"{folder} must be a folder of this user's that nobody else may write")
    return folder
