"""The pulse of ranks: who does not answer is named, whenever that begins; the clock is the test's own."""

from __future__ import annotations

import threading

import pytest
from torch.distributed import HashStore

from gpuwise.errors import RankLostError
from gpuwise.runtime.ranks import Ranks, failure
from gpuwise.runtime.ranks.failure import last_words
from gpuwise.runtime.ranks.last_words import LastWords
from gpuwise.runtime.ranks.pulse import GRACE_S, PULSE_S, SILENT_S, SILENT_START_S, Pulse, RankStatus

HOSTS = ["alpha", "beta", "gamma"]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def pulses(clock: Clock, *, step: int = 1) -> list[Pulse]:
    """A pulse a rank, over one store."""
    store = HashStore()
    all_ranks = [Ranks(rank, len(HOSTS), store=store, host=host) for rank, host in enumerate(HOSTS)]
    for ranks in all_ranks:
        ranks.hosts = HOSTS
    return [
        Pulse(ranks, lambda: RankStatus(step=step, phase="step"), end=lambda words, own: None, clock=clock)
        for ranks in all_ranks
    ]


def look_for(watching: list[Pulse], clock: Clock, seconds: float) -> list[LastWords | None]:
    """The last answers of these ranks' looks, one each PULSE_S."""
    answers: list[LastWords | None] = []
    until_s = clock.now_s + seconds
    while clock.now_s < until_s:
        clock.now_s += PULSE_S
        answers = [pulse.look() for pulse in watching]
    return answers


def test_ranks_that_answer_are_left_alone():
    clock = Clock()
    assert look_for(pulses(clock), clock, 300) == [None, None, None]


@pytest.mark.parametrize(("step", "longest_s"), [(1, SILENT_S), (0, SILENT_START_S)], ids=["in a step", "before the first"])
@pytest.mark.parametrize("before_s", [0.0, 20.0], ids=["from the start", "later"])
@pytest.mark.parametrize("silent", [0, 2])
def test_a_rank_that_does_not_answer_is_named_by_all_others(silent: int, before_s: float, step: int, longest_s: float):
    clock = Clock()
    all_ranks = pulses(clock, step=step)
    look_for(all_ranks, clock, before_s)
    others = [pulse for rank, pulse in enumerate(all_ranks) if rank != silent]
    assert look_for(others, clock, longest_s - 2 * PULSE_S) == [None, None]
    for words in look_for(others, clock, GRACE_S + 5 * PULSE_S):
        assert words is not None
        assert (words.rank, words.host, words.code) == (silent, HOSTS[silent], "rank-lost")
        assert f"rank {silent} on {HOSTS[silent]} has not answered" in words.what


def test_last_words_reach_every_rank():
    clock = Clock()
    all_ranks = pulses(clock)
    look_for(all_ranks, clock, 10)
    words = LastWords(1, "beta", "job", 2, "the loss is no longer finite.")
    Ranks(1, len(HOSTS), store=all_ranks[1]._ranks._store, host="beta").leave(words)
    assert look_for(all_ranks, clock, GRACE_S + 2 * PULSE_S) == [words] * 3


def test_a_watch_that_fails_ends_the_run_and_says_why():
    ends: list[tuple[LastWords, bool]] = []
    turns = iter([False, True])

    def status() -> RankStatus:
        raise KeyError("phase")

    ranks = Ranks(0, 2, store=HashStore(), host="alpha")
    pulse = Pulse(ranks, status, end=lambda words, own: ends.append((words, own)), wait=lambda seconds: next(turns))
    pulse._run()
    ((words, _),) = ends
    assert words == ranks.failure()
    assert "KeyError" in words.what


def test_ranks_that_were_all_stopped_for_a_while_go_on():
    clock = Clock()
    all_ranks = pulses(clock)
    look_for(all_ranks, clock, 10)
    clock.now_s += 3600.0
    assert look_for(all_ranks, clock, 60) == [None, None, None]


def test_a_store_that_does_not_answer_is_noticed_beside_the_look_that_waits_for_it():
    class Stopped(HashStore):
        def set(self, key: str, value: str) -> None:
            released.wait(60)

    released, turns = threading.Event(), iter([False, True])
    ranks = Ranks(1, 2, store=Stopped(), host="beta")
    pulse = Pulse(ranks, RankStatus, end=lambda words, own: None, wait=lambda seconds: next(turns))
    looking = threading.Thread(target=pulse._run)
    looking.start()
    noticed = [pulse.is_stuck() for _ in range(int(SILENT_S / PULSE_S) + 1)]
    released.set()
    looking.join()
    assert noticed == [False] * (len(noticed) - 1) + [True]
    assert "rank 1 on beta has lost the launcher, or rank 0" in pulse.without_store().what
    assert not pulse.is_stuck()


def test_a_collective_that_fails_without_a_word_of_others_is_a_lost_rank(monkeypatch: pytest.MonkeyPatch):
    """Not an error of the job: the launcher starts the ranks again."""
    monkeypatch.setattr(failure, "CAUSE_S", 0.0)
    ranks = Ranks(1, len(HOSTS), store=HashStore(), host="beta")
    ranks.hosts = HOSTS
    reset = "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1234: Connection reset by peer"
    with pytest.raises(RankLostError, match="rank 1 on beta has lost the other ranks") as caught, last_words(ranks, None):
        raise RuntimeError(reset)
    assert "Connection reset by peer" in caught.value.what
    words = ranks.failure()
    assert words is not None
    assert (words.code, words.exit_code) == (RankLostError.code, RankLostError.exit_code)
