"""The signals that ask a run to stop."""

from __future__ import annotations

import signal

# Slurm can send SIGUSR1 as a warning before a job's limit (sbatch --signal=USR1@60), and a closed terminal sends SIGHUP.
# Windows has neither.
_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
STOP_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
