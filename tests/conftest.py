"""What every test run shares: one thread a process, and properties that do not depend on timing."""

import os

# Before anything imports numpy or torch: tests run side by side, and more threads than cores slow them all.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

# Derandomised, so that a red run is red again; `--hypothesis-profile=explore` looks for new examples.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore",
    settings.get_profile("repeatable"),
    derandomize=False,
    max_examples=1000,
)
settings.load_profile("repeatable")
