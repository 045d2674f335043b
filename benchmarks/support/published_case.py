"""Case: one published row as a job, a strategy and a chip of ours."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.fit.split import kept_out_model
from gpuwise.strategy import Strategy

# Published names of one architecture, so that it is kept out of a fit or not as a whole.
SAME_MODEL = {"bert-large-qa": "bert_large", "bert_large-classify": "bert_large"}


@dataclass(frozen=True)
class Case:
    """One published row. job: what `job_of` understands; seq_len or image_size goes to the trace.

    half: the whole model ran in fp16 (apex's O2; recorded in bf16). update: whether the timed step updated parameters; where
    not, it is a forward and a backward pass that adds to gradients. torch: its version, where the source has it.
    """

    subset: str
    job: str
    strategy: Strategy
    size: tuple[tuple[str, int], ...]
    chip_id: str
    count: int
    machines: int
    seconds: float
    half: bool = False
    update: bool = True
    torch: str = ""

    @property
    def model(self) -> str:
        """What it is kept out by."""
        name = self.job.removeprefix("timm:").removeprefix("hf-")
        return SAME_MODEL.get(name, name)

    @property
    def kept_out(self) -> bool:
        """Never seen by a fit of whole steps."""
        return kept_out_model(self.model)
