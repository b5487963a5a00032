"""The probe: measures a cluster with real transfers, says what is odd about it, and calibrates its cluster spec.

`schedule` says who sends what to whom, `rank` (with `streams`, `messages` and `collectives`) does it on every rank and
writes down samples, `run` starts the ranks and collects them, `analysis` makes a calibration of samples and `findings`
makes warnings of a calibration.
"""

from autosync.trials.probe.findings import Finding
from autosync.trials.probe.request import ProbeSettings
from autosync.trials.probe.run import Probed, probe

__all__ = ["Finding", "ProbeSettings", "Probed", "probe"]
