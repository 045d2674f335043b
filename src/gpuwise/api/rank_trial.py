"""One rank of a trial of `validate` on several ranks; gpuwise.api.mesh_trial starts them. Rank 0 answers for all.

    python -m gpuwise.api.rank_trial REQUEST

The request, in JSON, has the job's name and sizes, the strategy of the forecast, and the number of steps or null. Answers:
{"doing": text} as it goes, {"measured": {...}, "threads": n} at the end.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

from gpuwise.api.rank_start import joined
from gpuwise.api.sources import job_of
from gpuwise.errors import OtherRankError
from gpuwise.hardware.detect.ranks import RankEnvironment, rank_environment
from gpuwise.measure.child import DelegateConnection
from gpuwise.strategy import Strategy

if TYPE_CHECKING:
    from gpuwise.runtime.ranks import RunRanks


def main() -> None:
    connection, environment = DelegateConnection(), rank_environment()
    if environment is None:
        raise SystemExit("gpuwise.api.rank_trial is a rank: gpuwise validate JOB --mesh AXES starts it")
    try:
        ranks, device = joined(environment)
        with ranks.speaking():
            ranks.connect()
            _measure(connection, ranks, str(device))
        ranks.done()
    except Exception as error:  # the job's own code may raise anything
        sys.exit(_leave_words(error, environment))


def _measure(connection: DelegateConnection, ranks: RunRanks, device: str) -> None:
    import torch

    from gpuwise.measure.rank_trial import run_rank_trial
    from gpuwise.runtime.build.failure import job_failure

    request, doing = connection.request, "preparing"

    def say(what: str) -> None:
        nonlocal doing
        doing = what
        if ranks.own.leads:
            connection.send(doing=what)

    job, strategy = job_of(request["job"], **request["sizes"]), Strategy.from_dict(request["strategy"])
    try:
        measured = run_rank_trial(job, strategy, torch.device(device), ranks.own, steps=request["steps"], say=say)
    except Exception as error:
        raise job_failure(error, job, doing=doing, part=job.loss) from error
    if ranks.own.leads:
        connection.send(measured=measured.to_dict(), threads=torch.get_num_threads())


def _leave_words(error: Exception, environment: RankEnvironment) -> int:
    """Leaves the failure of this rank for the process that has started it. Returns the exit code."""
    from gpuwise.runtime.ranks.joining import leave_words
    from gpuwise.runtime.ranks.last_words import LastWords

    if isinstance(error, OtherRankError):
        return error.exit_code
    words = LastWords.of(error, rank=environment.rank, host=socket.gethostname())
    leave_words(environment, words)
    return words.exit_code


if __name__ == "__main__":
    main()
