"""Several ranks as one run: how they start and meet, what they agree on, and what they say when one of them fails."""

from gpuwise.runtime.ranks.last_words import LastWords
from gpuwise.runtime.ranks.ranks import ALONE, Ranks

__all__ = ["ALONE", "LastWords", "Ranks"]
