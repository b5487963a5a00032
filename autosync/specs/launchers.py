"""The launchers by name, and the properties that each declares of the machines where it starts ranks.

The classes live in `autosync.launchers`, above this package, or in packages of third parties (entry-point group
`autosync.launchers`). They are imported when the properties of a launcher are used.
"""

from __future__ import annotations

from typing import Protocol

from autosync.registry import Registry

LAUNCHERS = Registry(
    "launcher",
    {
        "kubernetes": "autosync.launchers.kubernetes:KubernetesLauncher",
        "local": "autosync.launchers.local:LocalLauncher",
        "ray": "autosync.launchers.ray:RayLauncher",
        "slurm": "autosync.launchers.slurm:SlurmLauncher",
        "ssh": "autosync.launchers.ssh:SshLauncher",
        "testbed": "autosync.launchers.testbed:TestbedLauncher",
    },
)


class LauncherTraits(Protocol):
    """The properties of a launcher that specs and simulators depend on."""

    is_one_machine: bool
    """Whether all ranks run on this machine and share its processors and memory."""

    is_emulated: bool
    """Whether the network between the nodes is emulated, with the rates of the cluster file."""

    way: str
    """The way to reach other machines, for messages: `by ssh`. Empty if all ranks run on this machine."""

    default_python: str
    """The Python of the ranks if the cluster file names none."""


def launcher_traits(name: str) -> LauncherTraits:
    """Return the properties of the launcher called `name`; raise UnknownNameError with the known names if unknown."""
    launcher: LauncherTraits = LAUNCHERS.get(name)()
    return launcher


def shares_loopback(name: str) -> bool:
    """Whether nodes share this machine's own network, so that ranks talk over loopback."""
    traits = launcher_traits(name)
    return traits.is_one_machine and not traits.is_emulated
