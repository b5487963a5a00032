"""Hosts of a testbed, each with a real sshd, and a host from which they are reached."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from autosync.errors import OperationError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.testbed import Testbed, live, up
from autosync.testbed.requirements import find_folders

SSHD = "/usr/sbin/sshd"
PORT = 2222
HEAD = "head"


def missing() -> str:
    """Why there can be no such hosts here; empty where there can."""
    if not Path(SSHD).exists():
        return "sshd is not installed (package openssh-server): make test-launchers installs it"
    if shutil.which("ssh") is None:
        return "ssh is not installed (package openssh-client)"
    if os.geteuid():
        return "an sshd in a host of the testbed takes root"
    try:
        find_folders()
    except OperationError as error:
        return str(error)
    return ""


class SshHosts:
    """A testbed's hosts, reached by ssh from its host `head`."""

    def __init__(self, bed: Testbed, folder: Path, cluster: ClusterSpec) -> None:
        self.bed = bed
        self.folder = folder
        self.cluster = cluster
        self.config = folder / "ssh_config"
        self.known_hosts = folder / "known_hosts"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def through(self) -> tuple[str, ...]:
        """The words before a command that make it run on the host from which the others are reached."""
        return self.bed.enter(HEAD)

    @property
    def environment(self) -> dict[str, str]:
        return {"AUTOSYNC_SSH": f"ssh -F {self.config}"}

    def keys(self) -> None:
        """A key of the user's, and one of each host's, which the user knows."""
        for name in ("user", *(node.name for node in self.cluster.nodes)):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(self.folder / name))
        known = [
            f"[{self.bed.address(node.name)}]:{PORT} {(self.folder / f'{node.name}.pub').read_text()}"
            for node in self.cluster.nodes
        ]
        self.known_hosts.write_text("".join(known))
        self.config.write_text(
            f"Host *\n  Port {PORT}\n  User root\n  IdentityFile {self.folder / 'user'}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
        )

    def start(self, node: str, options: Sequence[str] = (), **environment: str) -> None:
        """An sshd in a node's host, with some options more, whose sessions have some variables more."""
        settings = (
            *options,
            f"AuthorizedKeysFile={self.folder / 'user.pub'}",
            f"ListenAddress={self.bed.address(node)}",
            "StrictModes=no",
            "UsePAM=no",
            "PidFile=none",
            "PermitRootLogin=yes",
            *(["SetEnv=" + " ".join(f"{name}={value}" for name, value in environment.items())] if environment else []),
        )
        words = [word for setting in settings for word in ("-o", setting)]
        command = (SSHD, "-D", "-e", "-f", "/dev/null", "-p", str(PORT), "-h", str(self.folder / node), *words)
        with (self.folder / f"{node}.sshd").open("wb") as log:
            self.daemons[node] = subprocess.Popen((*self.bed.enter(node), *command), stdout=log, stderr=log)

    def await_daemons(self) -> None:
        """Wait until all answer."""
        deadline = time.monotonic() + 20
        for node in self.daemons:
            while "Server listening" not in (self.folder / f"{node}.sshd").read_text():
                assert time.monotonic() < deadline, (self.folder / f"{node}.sshd").read_text()
                time.sleep(0.02)

    def left(self, *nodes: str) -> list[str]:
        """What runs in some hosts, or in any, but for sshd."""
        found = self.bed.processes()
        return [f"{node}: {one}" for node in nodes or found for one in found[node] if "sshd" not in str(one)]

    def rejoin(self, node: str) -> None:
        """Puts a node back on the network."""
        self.bed.set_link(node, up=True)

    def keep_temporary(self, node: str, folder: Path | None) -> None:
        """A node's temporary files lie in a folder; None: where they always lay."""
        self.restart(node, **({} if folder is None else {"TMPDIR": str(folder)}))

    def restart(self, node: str, options: Sequence[str] = (), **environment: str) -> None:
        """Another sshd with other options, whose sessions have other variables."""
        daemon = self.daemons.pop(node)
        daemon.kill()
        daemon.wait()
        self.start(node, options, **environment)
        self.await_daemons()

    def end(self) -> None:
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()


@contextmanager
def ssh_hosts(folder: Path, nodes: Sequence[Node]) -> Iterator[SshHosts]:
    """Hosts for some nodes, and a cluster of them under the ssh launcher. Everything is gone afterwards."""
    Path("/run/sshd").mkdir(exist_ok=True)
    head = Node(name=HEAD, host=HEAD, bandwidth_out=1e8, bandwidth_in=1e8)
    bed_cluster = ClusterSpec(name=f"test-{secrets.token_hex(4)}", nodes=(*nodes, head), launcher="testbed")
    with ExitStack() as stack:
        stack.callback(live.down, bed_cluster, force=True)
        bed = stack.enter_context(up(bed_cluster))
        addressed = tuple(replace(node, host=bed.address(node.name)) for node in nodes)
        hosts = SshHosts(bed, folder, ClusterSpec(name="ssh-hosts", nodes=addressed, launcher="ssh"))
        stack.callback(hosts.end)
        hosts.keys()
        for node in nodes:
            hosts.start(node.name)
        hosts.await_daemons()
        yield hosts


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)
