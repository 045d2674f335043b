"""How the threads of PyTorch's operations wait for each other: asleep, so that another program on the same cores can run.

OpenMP's threads wait actively unless told otherwise: between two operations each keeps its core busy. Beside another program
the thread that still has work then waits for a core on which one spins, at every operation. OpenMP reads its settings when it
is loaded, which PyTorch does: later it is too late for a process.
"""

from __future__ import annotations

import os
import sys

# Settings of OpenMP 5.2 (section 21.6), of GNU's libgomp and of LLVM's and Intel's: whoever sets one has chosen.
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SETTING = "OMP_WAIT_POLICY=passive"
# OpenBLAS, which NumPy and SciPy carry, has threads of its own. An idle one spins for 2^26 cycles before it sleeps, 2^4 is the
# least that it takes (docs/runtime_variables.md of OpenBLAS): after a product of 10 us its seconds of a processor are 25 ms.
BLAS_CHOICE, BLAS_LEAST = "OPENBLAS_THREAD_TIMEOUT", "4"


def passive_waiting() -> dict[str, str]:
    """Variables for a process that loads PyTorch; none where the user has chosen."""
    return {} if waiting_is_set() else dict([SETTING.split("=")])


def idle_threads_asleep() -> dict[str, str]:
    """Variables for a process whose seconds of processors are those of work: threads of OpenMP and of OpenBLAS wait asleep."""
    own = {} if BLAS_CHOICE in os.environ else {BLAS_CHOICE: BLAS_LEAST}
    return passive_waiting() | own


def wait_passively() -> None:
    """For this process and those that it starts, unless PyTorch is loaded already or the user has chosen."""
    if "torch" not in sys.modules:
        os.environ.update(passive_waiting())


def waiting_is_set() -> bool:
    """Whether a setting says how threads wait, the user's or ours; else they wait actively."""
    return any(name in os.environ for name in CHOICES)
