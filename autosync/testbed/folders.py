"""The folders of testbeds: where their namespaces and records are, and how a process enters a host.

Root's namespaces have files where `ip netns` has them, and records in a folder of the machine. Other users have
namespaces in a user namespace that a process, the namespace holder, keeps alive; the link KEY.holder leads to it.
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
    """The folder of testbeds' records, and whether namespaces are made without root."""

    folder: Path
    rootless: bool

    def record(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def holder(self, key: str) -> Path:
        """Return the path of the link to the holder's folder in /proc."""
        return self.folder / f"{key}.holder"

    def log(self, key: str) -> Path:
        """Return the path of the holder's log, which has its output if it cannot start."""
        return self.folder / f"{key}.log"

    def recorded(self) -> list[str]:
        """Return the keys of testbeds with a record."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def namespace(self, key: str, name: str) -> Path:
        """Return the path of a namespace's file."""
        return self._names(key) / name

    def enter(self, key: str, namespace: str) -> tuple[str, ...]:
        """Return the command prefix that runs a command in a host."""
        user = ("--preserve-credentials", f"--user={self.holder(key)}/ns/user") if self.rootless else ()
        return ("nsenter", *user, f"--net={self.namespace(key, namespace)}")

    def manage(self, key: str) -> tuple[str, ...]:
        """Return the command prefix that runs `ip` and `tc` where they find the namespaces."""
        if not self.rootless:
            return ()
        at = self.holder(key) / "ns"
        return ("nsenter", "--preserve-credentials", f"--user={at}/user", f"--mount={at}/mnt", f"--net={at}/net")

    def existing(self, key: str) -> tuple[str, ...]:
        """Return the names of the existing namespaces of a testbed."""
        return tuple(sorted(name for found, name in self._scan(key) if found == key))

    def unrecorded(self) -> set[str]:
        """Return the keys of testbeds that have namespaces but no record.

        Without root there are none, because namespaces end with their holder.
        """
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
    """Return root's folders: records in /run/autosync, namespaces where `ip netns` has them."""
    return NamespaceFolders(folder=_private_folder(Path("/run/autosync")), rootless=False)


def user_folders() -> NamespaceFolders:
    """Return the folders of a user without root: in the user's runtime folder, or in /tmp if the system has none."""
    uid = os.geteuid()
    given = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(given) / "autosync" if given else Path(f"/tmp/autosync-{uid}")  # noqa: S108 - owner is checked
    return NamespaceFolders(folder=_private_folder(folder), rootless=True)


def _private_folder(folder: Path) -> Path:
    """Make a folder, or check that no other user can write to an existing one: commands are read from it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise OperationError(f"{folder} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise OperationError(f"{folder} must belong to this user, and no other user may write to it")
    return folder
