"""Several ranks as one run: how they start and meet, what they agree on, and what they say when one of them fails."""

from gpuwise.runtime.ranks.last_words import LastWords
from gpuwise.runtime.ranks.ranks import ALONE, Ranks
from gpuwise.runtime.ranks.run_ranks import ALONE_IN_RUN, RunRanks

__all__ = ["ALONE", "ALONE_IN_RUN", "LastWords", "Ranks", "RunRanks"]
