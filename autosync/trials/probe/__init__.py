"""The probe: measures a cluster with real transfers, warns about problems, and adds a calibration to the cluster spec.

`schedule` plans the transfers between ranks; `rank` (with `streams`, `messages` and `collectives`) runs them on every
rank and takes samples; `run` starts the ranks and collects the samples; `analysis` turns samples into a calibration,
`findings` a calibration into warnings, and `reach` tells which rates say something about their link.
"""

from autosync.trials.probe.findings import Finding
from autosync.trials.probe.request import ProbeSettings
from autosync.trials.probe.run import Probed, probe

__all__ = ["Finding", "ProbeSettings", "Probed", "probe"]
