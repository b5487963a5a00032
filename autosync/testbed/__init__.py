"""A cluster emulated on one Linux machine: hosts in network namespaces with rate-limited links."""

from autosync.testbed.live import Testbed, up

__all__ = ["Testbed", "up"]
