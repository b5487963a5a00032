"""A real Slurm whose nodes are hosts of a testbed: munged, slurmctld on the host `head`, and a slurmd on each other."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from autosync.errors import OperationError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.testbed import Testbed, live, up
from autosync.testbed.requirements import find_folders

HEAD = "head"
_DAEMONS = {"munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm"}
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])


def missing() -> str:
    """Why there can be no Slurm here; empty where there can."""
    absent = sorted({package for program, package in _DAEMONS.items() if shutil.which(program, path=_PATH) is None})
    if absent:
        return f"Slurm is not installed (packages {', '.join(absent)}): make test-launchers installs it"
    if os.geteuid():
        return "a slurmd in a host of the testbed takes root"
    try:
        find_folders()
    except OperationError as error:
        return str(error)
    return ""


class SlurmHosts:
    """A testbed's hosts as nodes of a Slurm that is used from its host `head`."""

    def __init__(self, bed: Testbed, folder: Path, cluster: ClusterSpec) -> None:
        self.bed = bed
        self.folder = folder
        self.cluster = cluster
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def through(self) -> tuple[str, ...]:
        """The words before a command that make it run where Slurm is used from."""
        return self.bed.enter(HEAD)

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands says."""
        done = subprocess.run(
            (*self.through, *command),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            env={**os.environ, **self.environment},
        )
        return done.stdout

    def start(self) -> None:
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (self.folder / "munge.key").chmod(0o400)
        self.folder.chmod(0o700)
        self._write_configuration()
        files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munged.seed"}
        options = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._daemon((), "munged", "--foreground", "--force", *options)
        self._await((self.folder / "munge.sock").exists)
        self._daemon(self.through, "slurmctld", "-D", "-c")
        for node in self.cluster.nodes:
            self._daemon(self.bed.enter(node.name), "slurmd", "-D", "-N", node.host)
        self.await_idle()

    def await_idle(self) -> None:
        """Wait until all nodes can be had."""
        self._await(lambda: self.ask("sinfo", "--noheader", "-o", "%t").split() == ["idle"])

    def rejoin(self, node: str) -> None:
        """Puts a node back on the network, and waits until Slurm has it again."""
        self.bed.set_link(node, up=True)
        self.await_idle()

    def keep_temporary(self, node: str, folder: Path | None) -> None:
        """A node's temporary files lie in a folder; None: where they always lay."""
        (self.folder / f"temporary-{node}").write_text("" if folder is None else f"export TMPDIR={folder}\n")

    def _write_configuration(self) -> None:
        here = socket.gethostname()
        folder = self.folder
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={here}({self.bed.address(HEAD)})",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder / 'munge.sock'}",
            f"StateSaveLocation={folder / 'state'}",
            f"SlurmdSpoolDir={folder / 'spool-%n'}",
            f"SlurmctldPidFile={folder / 'slurmctld.pid'}",
            f"SlurmdPidFile={folder / 'slurmd-%n.pid'}",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "MpiDefault=none",
            "ReturnToService=2",
            "KillWait=3",
            f"TaskProlog={folder / 'prolog'}",
            "SlurmdTimeout=20",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            *(
                f"NodeName={node.host} NodeHostname={here} NodeAddr={self.bed.address(node.name)} CPUs=1"
                for node in self.cluster.nodes
            ),
            "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        ]
        (folder / "state").mkdir()
        # What it prints are variables of the node's tasks.
        (folder / "prolog").write_text(f'#!/bin/sh\ncat "{folder}/temporary-$SLURMD_NODENAME" 2>/dev/null\nexit 0\n')
        (folder / "prolog").chmod(0o755)
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")

    def _daemon(self, through: Sequence[str], *command: str) -> None:
        with (self.folder / f"{command[0]}-{len(self._daemons)}.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    (*through, *command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.environment, "PATH": _PATH},
                )
            )

    def _await(self, is_there: object) -> None:
        # A node that was cut off is asked again when Slurm likes.
        deadline = time.monotonic() + 150
        while not is_there():  # type: ignore[operator]
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.1)

    def told(self) -> str:
        """The last of what each daemon has said."""
        return "\n".join(f"{path.name}: {path.read_text()[-800:]}" for path in sorted(self.folder.glob("*.log")))

    def left(self, *nodes: str) -> list[str]:
        """What runs in some hosts but for Slurm itself; or in any, and the jobs that there are."""
        found = self.bed.processes()
        jobs = [] if nodes else self.ask("squeue", "--noheader").splitlines()
        return [*jobs, *(f"{node}: {one}" for node in nodes or found for one in found[node] if "slurm" not in str(one))]

    def end(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()


@contextmanager
def slurm_hosts(folder: Path, nodes: Sequence[Node]) -> Iterator[SlurmHosts]:
    """A Slurm of some nodes, and their cluster under the slurm launcher. Everything is gone afterwards."""
    head = Node(name=HEAD, host=HEAD, bandwidth_out=1e8, bandwidth_in=1e8)
    bed_cluster = ClusterSpec(name=f"test-{secrets.token_hex(4)}", nodes=(*nodes, head), launcher="testbed")
    with ExitStack() as stack:
        stack.callback(live.down, bed_cluster, force=True)
        bed = stack.enter_context(up(bed_cluster))
        hosts = SlurmHosts(bed, folder, ClusterSpec(name="slurm hosts", nodes=tuple(nodes), launcher="slurm"))
        stack.callback(hosts.end)
        hosts.start()
        yield hosts
