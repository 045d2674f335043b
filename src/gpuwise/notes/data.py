"""Notes on the data of a run."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_duration


@kind_of_note()
def synthetic_data() -> str:
    """The job has no data."""
    return "the job has no data: it trains on synthetic batches, so its loss means nothing."


@kind_of_note()
def dataset_of_loader() -> str:
    """Of a DataLoader the data set is taken."""
    return "data is a DataLoader: its dataset is taken; the batch size is the strategy's."


@kind_of_note()
def sampler_left_out(*, sampler: str) -> str:
    """The sampler of a DataLoader is not used."""
    return f"its {sampler} is left out: gpuwise shuffles, each sample once an epoch."


@kind_of_note()
def batch_sampler_left_out(*, sampler: str) -> str:
    """The batch sampler of a DataLoader is not used."""
    return f"its {sampler} is left out: gpuwise puts batches together itself."


@kind_of_note()
def other_epoch_length(*, epoch: int, samples: int, announced: int) -> str:
    """An iterable has another number of samples than announced."""
    return f"epoch {epoch} of the iterable had {samples:,} samples, not {announced:,} as was said."


@kind_of_note()
def other_number_of_samples(*, announced: int, samples: int) -> str:
    """The data set has another number of samples than the job announces."""
    return f"the job says {announced:,} samples an epoch, its data has {samples:,}."


@kind_of_note()
def samples_left_over(*, left_over: int, samples: int) -> str:
    """An epoch is no whole number of micro-batches."""
    return f"{left_over} of {samples:,} samples are left over each epoch."


@kind_of_note()
def data_unlike_the_example(*, name: str, data: str, example: str) -> str:
    """Samples of the data are shaped otherwise than the example batch."""
    return (
        f"the data differs from the example batch: {name} is {data} in the data, {example} in the example; "
        "a forecast is about the example."
    )


@kind_of_note(flag="--loader-workers")
def no_worker_processes() -> str:
    """Such data is not read by worker processes."""
    return "no worker processes: they read data sets by index, and iterables in a DataLoader."


@kind_of_note(flag="--prefetch")
def nothing_read_ahead() -> str:
    """On a CPU, data is read ahead by worker processes alone."""
    return "nothing is read ahead: on the CPU that takes worker processes, and there are none."


@kind_of_note(flag="--pinned-memory")
def no_pinned_memory() -> str:
    """Without a GPU nothing is pinned."""
    return "no pinned memory: it serves copies to a GPU."


@kind_of_note()
def workers_draw_anew() -> str:
    """Worker processes do not continue their random numbers."""
    return "random draws in the workers of a stateful loader begin anew where the run resumed."


@kind_of_note()
def other_samples_after_resume() -> str:
    """An iterable does not repeat its order."""
    return (
        "the iterable gives other samples than before the resume: this epoch continues in another order. "
        "Give it a fixed seed for an exact resume."
    )


@kind_of_note()
def data_did_not_come(*, step: int, waited_s: float, source: str) -> str:
    """The run ends while it waits for data."""
    return (
        f"the data of step {step} had not come for {format_duration(waited_s)}"
        + (f" from {source}" if source else "")
        + "; the run ends without it."
    )


@kind_of_note(flag="--loader-samples-per-s")
def slow_data(*, share: float, samples_per_s: float) -> str:
    """Much of the run went into waiting for data."""
    return (
        f"{share:.0%} of the time went into waiting for data, which came at "
        f"{samples_per_s:.3g} samples a second; a forecast leaves that out unless "
        "--loader-samples-per-s says so."
    )
