"""The default global batch of `plan` and `train`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.notes import Note
from gpuwise.notes import run as run_notes

# Training from scratch. Tokens: GPT-3's smaller models, 0.5 M (Brown et al. 2020, table 2.1). Images: 256 (Goyal et al. 2017,
# the ResNet-50 reference). Others: 256.
SCRATCH_TOKENS = 2**19
# From 13 billion parameters on 2 M, as GPT-3 13B and larger (the same table: 2 to 3.2 M).
LARGE_PARAMETERS, LARGE_TOKENS = 13 * 10**9, 2**21
_SMALL = "half a million tokens, as GPT-3's smaller models"
SCRATCH_SAMPLES = 256
# Fine-tuning of sequences: 16 (BERT's fine-tuning takes 16 or 32, Devlin et al. 2019, appendix A.3; QLoRA 16, Dettmers et al.
# 2023, appendix B.2).
FINE_TUNING_SAMPLES = 16
FEWEST_STEPS = 100  # in a pass over the data: a larger batch would leave too few updates
LEAST_SAMPLES = 32  # short samples that keep a device busy


@dataclass(frozen=True)
class TrainedOn:
    """The facts that the choice of a global batch depends on.

    Attributes:
        tokens: whether samples are sequences of tokens.
        units_per_sample: tokens in a sample; 1 if samples are no sequences.
        parameters: number of parameters of the model.
        trainable: number of trained parameters.
        total_samples: samples of the run.
        data_samples: samples of the data set; None (default) where unknown.
    """

    tokens: bool
    units_per_sample: int
    parameters: int
    trainable: int
    total_samples: int
    data_samples: int | None = None

    @property
    def fine_tunes(self) -> bool:
        """Whether the run fine-tunes a sequence model.

        True if samples are sequences and the run either freezes weights or has fewer tokens than parameters, too few to train
        from scratch.
        """
        few = self.total_samples * self.units_per_sample < self.parameters
        return self.tokens and (few or self.trainable < self.parameters)


def usual_global_batch(on: TrainedOn) -> tuple[int, str]:
    """A global batch in samples, a power of two, and the reason for it."""
    usual, least = SCRATCH_SAMPLES, LEAST_SAMPLES
    why = f"the usual {SCRATCH_SAMPLES}, or what leaves {FEWEST_STEPS} steps of a pass over the data"
    if on.fine_tunes:
        usual = least = FINE_TUNING_SAMPLES
        few = "weights are frozen" if on.trainable < on.parameters else "fewer tokens than the model has parameters"
        why = f"as in fine-tuning: {few}"
    elif on.tokens:
        large = on.parameters >= LARGE_PARAMETERS
        tokens, words = (LARGE_TOKENS, "two million tokens, as GPT-3 13B") if large else (SCRATCH_TOKENS, _SMALL)
        usual, least = tokens // on.units_per_sample, FINE_TUNING_SAMPLES
        why = f"{words}, or what leaves {FEWEST_STEPS} steps"
    data = min(on.total_samples, on.data_samples or on.total_samples)
    batch = power_of_two_below(max(1, min(usual, data // FEWEST_STEPS)))
    return max(batch, min(least, power_of_two_below(max(1, data)))), why


def assumed_global_batch(on: TrainedOn) -> tuple[int, Note]:
    """The global batch and the note that explains it."""
    batch, why = usual_global_batch(on)
    tokens = batch * on.units_per_sample if on.tokens else None
    return batch, run_notes.assumed_global_batch(samples=batch, tokens=tokens, why=why)


def power_of_two_below(value: int) -> int:
    return 1 << (value.bit_length() - 1)
