"""What ranks tell each other: here as threads that share one store in memory."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from gpuwise.errors import InputError, JobError, OtherRankError, RankLostError
from gpuwise.hardware.detect.ranks import first_node, rank_environment
from gpuwise.runtime.ranks import ALONE, LastWords, Ranks, joining, start
from gpuwise.runtime.ranks.last_words import is_of_others

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "12345",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}


def pair() -> tuple[Ranks, Ranks]:
    store = HashStore()
    return Ranks(0, 2, store=store, host="a"), Ranks(1, 2, store=store, host="b")


def test_a_process_that_was_started_alone_is_no_rank():
    assert rank_environment({}) is None
    assert rank_environment({"WORLD_SIZE": "1"}) is None
    assert rank_environment({"WORLD_SIZE": "1", "RANK": "0"}) is None
    batch_script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "4711"}
    assert rank_environment(batch_script) is None


def test_a_rank_of_torchrun():
    rank = rank_environment(TORCHRUN)
    assert rank is not None
    assert (rank.rank, rank.size, rank.local_rank, rank.local_size) == (3, 4, 1, 2)
    assert (rank.address, rank.port, rank.attempt, rank.hosted_by_agent) == ("10.0.0.1", 12345, 2, True)


def test_a_rank_of_slurm():
    rank = rank_environment(SRUN)
    assert rank is not None
    assert (rank.rank, rank.size, rank.local_rank, rank.local_size) == (5, 8, 1, 4)
    assert (rank.address, rank.launcher, rank.hosted_by_agent) == ("gpu007", "Slurm", False)
    assert 20_000 <= rank.port < 30_000


def test_a_pod_of_kubernetes_is_one_rank():
    rank = rank_environment({"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0"})
    assert rank is not None
    assert (rank.rank, rank.local_rank, rank.local_size, rank.port) == (2, 0, 1, 29500)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": None}, "RANK is not set"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
        ({"RANK": "4"}, "RANK is 4, and WORLD_SIZE is 4"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK is 2"),
        ({"RANK": "-1"}, "'-1'"),
        ({"WORLD_SIZE": "four"}, "'four'"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT"),
    ],
)
def test_contradictory_variables_are_refused(changes: dict[str, str | None], message: str):
    environment = {name: value for name, value in {**TORCHRUN, **changes}.items() if value is not None}
    with pytest.raises(InputError, match=message):
        rank_environment(environment)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[007-010,13],login", "gpu007"), ("n1,n2", "n1"), ("node-a", "node-a"), ("c[3,5]", "c3"), ("", "")],
)
def test_the_first_node_of_a_list(nodes: str, first: str):
    assert first_node(nodes) == first


def test_one_process_answers_itself():
    assert ALONE.of_first("x", lambda: 1) == 1
    assert ALONE.gathered("y", [2], within_s=1) == [[2]]
    assert ALONE.failure() is None


def test_the_value_of_rank_0_is_that_of_all():
    first, second = pair()
    answers: list[object] = []
    reader = threading.Thread(target=lambda: answers.append(second.of_first("step", lambda: 0)))
    reader.start()
    assert first.of_first("step", lambda: {"step": 7}) == {"step": 7}
    reader.join(timeout=60)
    assert answers == [{"step": 7}]


def test_values_are_there_once_all_ranks_have_posted():
    first, second = pair()
    first.post("saved", "a")
    assert first.posted("saved") is None
    second.post("saved", "b")
    assert first.posted("saved") == second.posted("saved") == ["a", "b"]


def test_a_rank_that_does_not_come_is_named():
    first, _ = pair()
    with pytest.raises(RankLostError, match=r"rank 1 of 2 has not come within 0\.01 s"):
        first.gathered("begin", None, within_s=0.01)


def test_the_first_words_are_those_that_are_told():
    first, second = pair()
    words = LastWords.of(JobError("the loss is nan at step 3.", ["a lower learning rate"]), rank=1, host="b")
    assert second.leave(words) == words
    assert first.leave(LastWords(0, "a", "unexpected", 1, "Connection closed by peer")) == words
    with pytest.raises(OtherRankError, match="rank 1 on b: the loss is nan at step 3") as raised:
        first.of_first("never", lambda: first.check())  # type: ignore[func-returns-value]
    assert (raised.value.code, raised.value.exit_code, raised.value.ways_out) == ("bad-job", 2, ("a lower learning rate",))


def test_a_rank_that_waits_ends_when_another_fails():
    first, second = pair()
    second.leave(LastWords.of(RankLostError("rank 1 on b was killed by SIGKILL."), rank=1, host="b"))
    with pytest.raises(OtherRankError, match=r"^rank 1 on b was killed by SIGKILL\.$"):
        first.gathered("begin", None, within_s=60)


@pytest.mark.parametrize(
    ("error", "of_others"),
    [
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("NCCL communicator was aborted"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("connection closed"), False),
    ],
)
def test_failures_of_collectives_are_told_from_those_of_the_job(error: Exception, of_others: bool):
    assert is_of_others(error) is of_others
    wrapped = JobError("the job failed in step 3.")
    wrapped.__cause__ = error
    assert is_of_others(wrapped) is of_others


def test_ranks_that_reach_the_store_but_not_each_other(monkeypatch: pytest.MonkeyPatch):
    """The other rank has joined, and never connects."""
    monkeypatch.setattr(joining, "REACH_S", 0.2)
    environment = rank_environment({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "2"})
    assert environment is not None
    with pytest.raises(RankLostError, match=r"rank 0 on .* reaches the store of the run at 10.0.0.1, but not all other ranks"):
        joining._initialise(environment, torch.device("cpu"), HashStore())
    assert not dist.is_initialized()


def failed(exitcode: int) -> ProcessFailure:
    names = {-9: "SIGKILL", -15: "SIGTERM"}
    return cast(ProcessFailure, SimpleNamespace(exitcode=exitcode, pid=1, signal_name=lambda: names.get(exitcode, "<N/A>")))


@pytest.mark.parametrize(
    ("codes", "first"),
    [
        ((2, -15), 2),  # a user's mistake, which rank 0 has printed; the agent has ended rank 1
        ((-15, 130), 130),
        ((-15, 1), 1),
        ((2, -9), -9),  # rank 0 has failed for lack of rank 1
    ],
)
def test_the_launcher_ends_as_the_rank_that_failed_first(codes: tuple[int, int], first: int):
    failures = {rank: failed(code) for rank, code in enumerate(codes)}
    assert start._exit_code(RunResult(state=WorkerState.FAILED, failures=failures)) == first
    words = start._lost(failures)
    assert (words is None) == (first in (2, 130))
    assert words is None or words.lost
