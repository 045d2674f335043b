"""PaddedPasses: the forward passes of a job whose samples differ in their tokens, on any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.api.devices import Device
from gpuwise.api.forward_passes import DevicePasses, JobPasses, key_of
from gpuwise.api.served_job import ServedJob
from gpuwise.api.source import StepSource
from gpuwise.errors import InputError
from gpuwise.notes import Note
from gpuwise.notes import serving_forward as notes
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.padded import PaddedTimes, priced_lengths
from gpuwise.serving_settings import ServingSettings
from gpuwise.step_settings import flag_of

SPREAD = 1.0  # standard deviation of lengths over their mean where the user names none, as of text
MOST_TOKENS = 1_000_000  # of a sample whose model has no longest one
MOST_BUCKETS = 32
EXAMPLE = "--buckets 64,128,256,512"


@dataclass(frozen=True)
class NamedPasses:
    """The job behind forward passes.

    Attributes:
        job: None for a saved trace.
        source_at: its traces with so many tokens in each sample.
    """

    job: ServedJob | None
    source_at: Callable[[int], StepSource]


@dataclass(frozen=True)
class SampleLengths:
    """Samples of different lengths.

    Attributes:
        shape: their lengths and arrivals.
        buckets: see gpuwise.serving.padded.PaddedTimes.
    """

    shape: LoadShape
    buckets: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Most tokens of a sample; longer ones are cut to it."""
        return (self.shape.lengths.longest or MOST_TOKENS) - 1

    @property
    def priced(self) -> list[int]:
        """Tokens at which passes are priced."""
        tokens = self.shape.at(1.0).input_tokens
        if not self.buckets:
            return priced_lengths(int(tokens.min()), int(tokens.max()))
        return sorted({self.buckets[at] for at in np.searchsorted(self.buckets, np.unique(tokens)).tolist()})

    @property
    def notes(self) -> tuple[Note, ...]:
        """How they run together."""
        lengths = self.shape.lengths
        ends = ", ".join(f"{end:,}" for end in self.buckets)
        return (
            notes.lengths_of_samples(tokens=lengths.input_tokens, variation=lengths.input_variation, longest=self.longest),
            notes.padded_to_buckets(buckets=ends) if ends else notes.padded_to_the_longest(),
        )

    def document(self) -> dict[str, object]:
        """What JSON has of them."""
        lengths = self.shape.lengths
        return {
            "input_tokens": lengths.input_tokens,
            "spread": lengths.input_variation,
            "longest": self.longest,
            "buckets": list(self.buckets),
        }


def sample_lengths(requested: ServingSettings, *, source: StepSource, longest: int | None) -> SampleLengths | None:
    """The lengths that the settings describe; None where all samples are alike.

    longest: most tokens that the model takes; None without a limit.

    Raises InputError for settings that are senseless, exclude each other, or need samples that have tokens.
    """
    mean, buckets = requested.get("input"), _buckets_of(requested)
    if mean is None:
        for name in ("spread", "buckets"):
            if requested.get(name) is not None:
                flag = flag_of(name)
                raise InputError(
                    f"{flag} is of samples of different lengths, and no mean is named.",
                    ["--input 100, their mean tokens", f"leave out {flag}"],
                )
        return None
    if source.tokens_per_sample == 1:
        raise InputError(
            f"--input is of models that write text or read tokens; samples of {source.name} are all alike.",
            ["leave out --input", "--image-size, the size of a sample"],
        )
    for name in ("seq_len", "profile"):
        if requested.get(name):
            flag = flag_of(name)
            raise InputError(
                f"{flag} is of samples that are all alike, and --input of others.", [f"leave out {flag}", "no --input"]
            )
    most = min(longest or MOST_TOKENS, *buckets[-1:] or (MOST_TOKENS,))
    if longest is not None and buckets and buckets[-1] > longest:
        raise InputError(f"the last bucket exceeds the {longest:,} tokens that {source.name} takes.", [f"end with {longest}"])
    if not 1 <= mean <= most:
        raise InputError(
            f"a mean of {mean:,} tokens is not among the 1 to {most:,} that a sample of {source.name} may have.",
            [f"--input {min(max(1, mean), most)}", *([EXAMPLE] if buckets else ["a model that reads longer samples"])],
        )
    spread = requested.get("spread")
    lengths = Lengths(mean, 1, input_variation=SPREAD if spread is None else float(spread), longest=most + 1)
    return SampleLengths(LoadShape(lengths), buckets)


def _buckets_of(requested: ServingSettings) -> tuple[int, ...]:
    """The ends of buckets; none where batches are padded to their longest sample."""
    text = requested.get("buckets")
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    ends = tuple(int(word) for word in words if word.isdecimal() and len(word) <= len(str(MOST_TOKENS)))
    rising = all(low < high for low, high in zip((0, *ends), ends, strict=False))
    if len(ends) != len(words) or not rising or len(ends) > MOST_BUCKETS:
        raise InputError(
            f"{text!r} is no list of at most {MOST_BUCKETS} buckets by their most tokens, in rising order.", [EXAMPLE]
        )
    return ends


class PaddedPasses(JobPasses):
    """Passes over samples of different lengths: those of the longest, whose times are beside those of shorter ones.

    Arguments:
        by_tokens: the passes of each length that is priced, of the same settings.
        lengths: of the samples.
    """

    def __init__(self, by_tokens: Mapping[int, JobPasses], lengths: SampleLengths) -> None:
        longest = by_tokens[max(by_tokens)]
        super().__init__(longest.source, longest.settings)
        self._by_tokens, self._lengths = by_tokens, lengths

    def passes(self, device: Device) -> DevicePasses:
        """The passes of one device of a machine. The shortest samples say which precision and which batches are considered,
        the longest which of those fit. Errors as for JobPasses."""
        key = key_of(device)
        if key not in self._passes:
            shortest = self._by_tokens[min(self._by_tokens)].passes(device)
            longest = self.in_precision(device, shortest.precision, sorted(shortest.forecasts))
            sizes = sorted(longest.forecasts)
            tables = {
                tokens: passes.in_precision(device, shortest.precision, sizes).forecast_times
                for tokens, passes in self._by_tokens.items()
            }
            padded = PaddedTimes(tables, self._lengths.shape.at(1.0), self._lengths.buckets)
            self._passes[key] = replace(longest, padded=padded)
        return self._passes[key]
