"""What a rank failed with, left in the store of the ranks, so that one of them can tell the user for all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch.distributed as dist

from gpuwise.errors import GpuwiseError, OtherRankError, RankLostError, message_of

UNEXPECTED = "unexpected"
# Messages of collectives whose other side has gone: of gloo (transport/tcp/pair.cc), NCCL and PyTorch's stores.
_OF_OTHERS = re.compile(
    r"gloo|nccl|connection (?:closed|reset|refused)|broken pipe|socket (?:closed|timeout)|timed out waiting|heartbeat|TCPStore",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LastWords:
    """The failure of one rank.

    Attributes:
        rank: number of the rank at fault.
        host: its machine.
        code: code of the error, as GpuwiseError.code.
        exit_code: exit code of the command line.
        what: what happened and why.
        ways_out: remedies, as in errors.
    """

    rank: int
    host: str
    code: str
    exit_code: int
    what: str
    ways_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: BaseException, *, rank: int, host: str) -> LastWords:
        if isinstance(error, GpuwiseError):
            return cls(rank, host, error.code, error.exit_code, error.what, error.ways_out)
        text = message_of(error)[:400]
        what = f"{type(error).__name__}: {text}" if text else type(error).__name__
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        return cls(rank, host, "interrupted" if interrupted else UNEXPECTED, 130 if interrupted else 1, what)

    @classmethod
    def from_json(cls, text: str | bytes) -> LastWords:
        values: Mapping[str, object] = json.loads(text)
        return cls(
            int(str(values["rank"])),
            str(values["host"]),
            str(values["code"]),
            int(str(values["exit_code"])),
            str(values["what"]),
            tuple(map(str, ways)) if isinstance(ways := values["ways_out"], list) else (),
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def lost(self) -> bool:
        """Whether the rank ended without a word, or does not answer: a restart may help."""
        return self.code in (RankLostError.code, UNEXPECTED)

    def error(self) -> OtherRankError:
        """The error to raise on the other ranks and in the launcher; it names the rank and its machine."""
        what = self.what if self.code == RankLostError.code else f"rank {self.rank} on {self.host}: {self.what}"
        return OtherRankError(what, self.ways_out, code=self.code, exit_code=self.exit_code)


def is_of_others(error: BaseException | None) -> bool:
    """Whether an exception, or one of its causes, is a collective that another rank has not taken part in."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and _OF_OTHERS.search(message_of(error))):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False
