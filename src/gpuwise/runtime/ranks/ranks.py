"""Ranks: the ranks of a run as one of them sees them, and what they tell each other beside their collectives."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable

from torch.distributed import Store

from gpuwise.errors import OtherRankError, RankLostError
from gpuwise.json_types import Json
from gpuwise.runtime.ranks.last_words import LastWords

_FAILURE = "failure"  # key of the first last words
_SLOWEST_POLL_S = 0.05


class Ranks:
    """The ranks of a run. Values go through the store that the ranks met in, as JSON; no collective is involved.

    Every name is used once in a run: put the step into it.

    Arguments:
        store: the store; None for a run of one process, in which every method answers from this process alone.
        host: this machine's name.
        core_share: ranks that share the cores which this process sees.
        first_start: a store that restarts of the ranks share.

    Attributes:
        rank: number of this rank, from 0.
        size: number of ranks.
        hosts: the machine of each rank.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        store: Store | None = None,
        host: str = "",
        core_share: int = 1,
        first_start: Store | None = None,
    ):
        self.rank, self.size, self.host, self.core_share = rank, size, host, core_share
        self.hosts = [host] * size
        self._store, self._first_start = store, first_start
        self._alone: dict[str, Json] = {}

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which decides, writes the files of the run and speaks to the user."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.size > 1

    def of_first(self, name: str, value: Callable[[], Json]) -> Json:
        """Rank 0's value on every rank; the others wait for it. `value` is called on rank 0 alone."""
        if self._store is None:
            return value()
        if self.leads:
            result = value()
            self._store.set(f"first/{name}", json.dumps(result))
            return result
        self._wait(f"first/{name}")
        answer: Json = json.loads(self._store.get(f"first/{name}"))
        return answer

    def tell_others(self, name: str, value: Json) -> None:
        """On rank 0: leaves a value that `of_first` of the others reads. Returns at once."""
        if self._store is not None:
            self._store.set(f"first/{name}", json.dumps(value))

    def tell_rank_0(self, name: str, value: Json) -> None:
        """Leaves a value that `told_by_rank` of rank 0 reads. Returns at once."""
        if self._store is not None:
            self._store.set(f"told/{name}", json.dumps(value))

    def told_by_rank(self, name: str) -> Json:
        """A value that another rank has left, which rank 0 knows from its pulse."""
        assert self._store is not None
        value: Json = json.loads(self._store.get(f"told/{name}"))
        self._store.delete_key(f"told/{name}")
        return value

    def left_by_rank(self, name: str) -> Json:
        """On rank 0: a value that another rank has left by `tell_rank_0`, None where it is not there yet. Returns at once."""
        if self._store is None or not self._store.check([f"told/{name}"]):
            return None
        return self.told_by_rank(name)

    def post(self, name: str, value: Json) -> None:
        """Leaves this rank's value for `posted`. Returns at once."""
        if self._store is None:
            self._alone[name] = value
            return
        self._store.set(f"post/{name}/{self.rank}", json.dumps(value))
        self._store.add(f"count/{name}", 1)

    def posted(self, name: str) -> list[Json] | None:
        """The values of all ranks by rank; None until every rank has posted one. Returns at once."""
        if self._store is None:
            return [self._alone[name]] if name in self._alone else None
        if not self._store.check([f"count/{name}"]) or self._store.add(f"count/{name}", 0) < self.size:
            return None
        return [json.loads(text) for text in self._store.multi_get([f"post/{name}/{rank}" for rank in range(self.size)])]

    def gathered(self, name: str, value: Json, *, within_s: float) -> list[Json]:
        """Posts this rank's value and waits for those of all others. Raises as `collected` does."""
        self.post(name, value)
        return self.collected(name, within_s=within_s)

    def collected(self, name: str, *, within_s: float) -> list[Json]:
        """Waits for the values that all ranks post.

        Raises RankLostError when some have not come within `within_s` seconds, OtherRankError when one has failed.
        """
        until_s, pause_s = time.monotonic() + within_s, 0.001
        while (values := self.posted(name)) is None:
            self.check()
            if time.monotonic() > until_s:
                raise RankLostError(f"{self.missing(name)} within {within_s:g} s.", [_SEE_LAUNCHER])
            time.sleep(pause_s)
            pause_s = min(_SLOWEST_POLL_S, 1.5 * pause_s)
        return values

    def forget(self, name: str) -> None:
        """Takes the values of a name out of the store. To be called by one rank, when every rank has read them."""
        if self._store is None:
            self._alone.pop(name, None)
            return
        for key in (f"first/{name}", f"count/{name}", *(f"post/{name}/{rank}" for rank in range(self.size))):
            self._store.delete_key(key)

    def missing(self, name: str) -> str:
        """'ranks 2, 3 of 4 have not come', of those that have posted no value."""
        if self._store is None:
            return ""
        absent = [str(rank) for rank in range(self.size) if not self._store.check([f"post/{name}/{rank}"])]
        shown = ", ".join(absent[:8]) + (f" and {len(absent) - 8:,} more" if len(absent) > 8 else "")
        return f"{'rank' if len(absent) == 1 else 'ranks'} {shown} of {self.size} {_have(len(absent))} not come"

    def first_of(self, name: str, value: Json) -> Json:
        """The value of the rank that was first to call this with one; None (of this rank) only asks for it."""
        if self._store is None:
            return self._alone.setdefault(name, value)
        key = f"any/{name}"
        if value is None and not self._store.check([key]):
            return None
        answer: Json = json.loads(
            self._store.get(key) if value is None else self._store.compare_set(key, "", json.dumps(value))
        )
        return answer

    def lasting(self, name: str, value: Callable[[], Json]) -> Json:
        """On rank 0: a value of the first start, which later restarts get again."""
        if self._first_start is None:
            return value()
        key = f"lasting/{name}"
        if not self._first_start.check([key]):
            self._first_start.set(key, json.dumps(value()))
        answer: Json = json.loads(self._first_start.get(key))
        return answer

    def leave(self, words: LastWords) -> LastWords:
        """Leaves last words. Returns the first that any rank has left, which are those to tell the user."""
        if self._store is None:
            return words
        return LastWords.from_json(self._store.compare_set(_FAILURE, "", words.to_json()))

    def failure(self) -> LastWords | None:
        """The first last words of any rank."""
        if self._store is None or not self._store.check([_FAILURE]):
            return None
        return LastWords.from_json(self._store.get(_FAILURE))

    def check(self) -> None:
        """Raises OtherRankError if a rank has failed."""
        if (words := self.failure()) is not None:
            raise words.error()

    def set_pulse(self, text: str) -> None:
        """This rank's sign of life, which replaces the one before."""
        if self._store is not None:
            self._store.set(f"pulse/{self.rank}", text)

    def pulses(self, ranks: Iterable[int]) -> dict[int, str]:
        """The latest signs of life of these ranks, without those that have not given one yet."""
        if self._store is None:
            return {}
        keys = {rank: f"pulse/{rank}" for rank in ranks}
        if not self._store.check(list(keys.values())):
            keys = {rank: key for rank, key in keys.items() if self._store.check([key])}
        texts = self._store.multi_get(list(keys.values())) if keys else []
        return {rank: text.decode() for rank, text in zip(keys, texts, strict=True)}

    def cloned(self) -> Ranks:
        """The same with a connection of its own, for another thread."""
        # The type stubs of PyTorch 2.13 leave `clone` out.
        store = None if self._store is None else self._store.clone()  # type: ignore[attr-defined]
        clone = Ranks(self.rank, self.size, store=store, host=self.host)
        clone.hosts = self.hosts
        return clone

    def _wait(self, key: str) -> None:
        """Waits for a key of the store. Raises OtherRankError when a rank fails meanwhile."""
        assert self._store is not None
        pause_s = 0.001
        while not self._store.check([key]):
            self.check()
            time.sleep(pause_s)
            pause_s = min(_SLOWEST_POLL_S, 1.5 * pause_s)


ALONE = Ranks()
_SEE_LAUNCHER = "see what the launcher (torchrun, srun, kubectl) says of those ranks"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def is_lost(error: BaseException) -> bool:
    """Whether an error says that a rank was lost, here or as another rank's last words."""
    return isinstance(error, RankLostError) or (isinstance(error, OtherRankError) and error.code == RankLostError.code)
