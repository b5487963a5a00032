"""How ranks are started: one interface, one module a launcher."""

from autosync.launchers.request import LaunchRequest, Process
from autosync.registry import Registry

__all__ = ["LAUNCHERS", "LaunchRequest", "Process"]

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
