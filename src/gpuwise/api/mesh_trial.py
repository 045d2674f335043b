"""A trial of `validate` on several ranks of this machine, started as `gpuwise train --mesh` starts its own."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gpuwise.errors import DoesNotFitError, OtherRankError, RankLostError
from gpuwise.hardware.detect import detect_cpu
from gpuwise.measure.child import WorkerConnection, oom_kills
from gpuwise.strategy import Strategy

RANK = "gpuwise.api.rank_trial"
FEWER = ("fewer ranks: a smaller --mesh", "a smaller --micro-batch")


def run_ranks(child: WorkerConnection, strategy: Strategy) -> None:
    """Runs the ranks of a mesh, of which rank 0 answers what they measured, in place of this process.

    Answers {"failed": {...}} or {"out_of_memory": text} itself where a rank fails; then no rank is left.
    """
    from gpuwise.runtime.ranks.start import start_ranks

    request: Mapping[str, object] = child.request
    ranks, kills = strategy.mesh.devices, oom_kills()
    handed_on = {name: request[name] for name in ("job", "sizes", "steps")} | {"strategy": strategy.to_dict()}
    child.hand_over()
    try:
        # -P: no file of the current folder shadows a library.
        start_ranks(["-P", "-m", RANK, json.dumps(handed_on)], ranks=ranks, threads=max(1, detect_cpu().cores // ranks))
    except OtherRankError as error:
        if error.code == DoesNotFitError.code or (error.code == RankLostError.code and oom_kills() != kills):
            child.send(out_of_memory=error.what)
        else:
            ways = FEWER if error.code == RankLostError.code else error.ways_out  # train's are about checkpoints
            child.send(failed={"message": error.what, "ways_out": ways})
