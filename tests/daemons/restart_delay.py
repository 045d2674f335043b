"""How long a preempted job waits on a Slurm with default settings, until it runs again on machines that are free.

    python tests/daemons/restart_delay.py 5             # two to three minutes each

Slurm lets a requeued job start after cred_expire (AuthInfo in slurm.conf), 120 s by default, with the scheduler's next pass.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.daemons.namespace import until
from tests.daemons.slurm import Slurm

# A run that saves in no time: it ends by the signal with 130, as gpuwise train does, and is requeued by its script.
_JOB = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --partition=spot --requeue --open-mode=append --output=/dev/null
srun bash -c 'trap "exit 130" TERM; while :; do sleep 0.1; done'
if [ $? -eq 130 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
"""


def delays_s(times: int) -> list[float]:
    """Seconds from the end of an attempt to the start of the next, for so many preemptions."""
    delays: list[float] = []
    with Slurm() as slurm, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "job.sbatch").write_text(_JOB)
        job = slurm.submit("job.sbatch", cwd=folder)
        for number in range(1, times + 1):
            slurm.wait(job, "RUNNING")
            time.sleep(7 * number % 11)  # so that the scheduler's passes come at various moments
            slurm.submit("--partition=main", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true", cwd=folder)
            until(lambda number=number: slurm.job(job)["Restarts"] == str(number), timeout_s=60, what="a preemption")
            began_s = time.monotonic()
            slurm.wait(job, "RUNNING", timeout_s=400)
            delays.append(time.monotonic() - began_s)
            print(f"{number}: running again after {delays[-1]:.0f} s", flush=True)
    return delays


if __name__ == "__main__":
    delays = delays_s(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    print(f"{min(delays):.0f} to {max(delays):.0f} s, median {median(delays):.0f} s")
