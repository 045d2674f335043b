"""What rank 0 shows and logs of the other ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from torch.distributed import HashStore

from gpuwise.runtime.ranks import Ranks
from gpuwise.runtime.ranks.pulse import RankStatus
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.rank_report import LOG_EVERY_S, RankReporter, Relay, slowest_of

HOSTS = ["a", "b"]


class KeepingReporter:
    """Keeps what it is given to print."""

    def __init__(self) -> None:
        self.notes = [SimpleNamespace(text="of all ranks")]
        self.texts: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.log = SimpleNamespace(write=lambda kind, record: self.records.append(record))

    def tell(self, text: str, kind: str, **fields: object) -> None:
        self.texts.append(text)


def reporter(printed: KeepingReporter, statuses: dict[int, RankStatus], meter: Meter) -> tuple[RankReporter, Relay]:
    """Of rank 0, and the display of rank 1."""
    store = HashStore()
    first, second = Ranks(0, 2, store=store, host="a"), Ranks(1, 2, store=store, host="b")
    first.hosts = HOSTS
    parts: dict[str, Any] = {"stall": SimpleNamespace(phase="step"), "reporter": printed, "relay": None, "host_works": False}
    return RankReporter(first, cast(Any, SimpleNamespace(statuses=statuses)), meter=meter, **parts), Relay(second)


def test_a_note_of_another_rank_is_told_unless_rank_0_has_it_too():
    printed, statuses = KeepingReporter(), {0: RankStatus(1)}
    ranks, relay = reporter(printed, statuses, Meter(steps=10, global_batch=1))
    relay.note("of all ranks")
    relay.note("of this rank")
    statuses[1] = RankStatus(1, notes=relay.count)
    ranks.look()
    ranks.look()
    assert printed.texts == ["rank 1 on b: of this rank"]


def test_the_log_has_the_waits_of_each_rank_now_and_then():
    printed, meter = KeepingReporter(), Meter(steps=10, global_batch=1)
    statuses = {0: RankStatus(7, "step", 0.0, 0.4)}
    ranks, _ = reporter(printed, statuses, meter)
    ranks.look()
    assert printed.records == []  # rank 1 has no status yet
    statuses[1] = RankStatus(7, "data", 0.3, 0.1)
    ranks.look()
    ranks.look()
    meter.now_s += LOG_EVERY_S
    ranks.look()
    assert len(printed.records) == 2
    record = printed.records[0]
    assert record["kind"] == "ranks"
    assert record["text"] == "slowest: rank 1 on b, 30 % waiting for data; the others wait 40 %"
    assert [(each["rank"], each["host"], each["data_share"], each["wait_share"]) for each in record["ranks"]] == [
        (0, "a", 0.0, 0.4),
        (1, "b", 0.3, 0.1),
    ]


def test_the_slowest_rank_is_the_one_that_waits_least_for_others():
    waits = {0: RankStatus(wait_share=0.5), 1: RankStatus(wait_share=0.1), 2: RankStatus(wait_share=0.4)}
    slowest = slowest_of(waits, ["a", "b", "c"])
    assert slowest is not None
    assert (slowest.rank, slowest.wait_share) == (1, 0.45)
    assert slowest_of({0: RankStatus(wait_share=0.2), 1: RankStatus(wait_share=0.25)}, HOSTS) is None
