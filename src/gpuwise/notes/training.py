"""Notes on a training run: its process, its folder and what it did."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_duration

# The process and its device.


@kind_of_note(flag="--pin-threads")
def threads_not_bound(*, problem: str) -> str:
    """Threads cannot be bound to cores."""
    return f"threads are not bound to cores: {problem}"


@kind_of_note(flag="--precision")
def tf32_ignored(*, device: str) -> str:
    """The device has no TF32."""
    return f"tf32 is ignored here: {device} has no such arithmetic, products run in fp32"


@kind_of_note(flag="--precision")
def bf16_emulated(*, precision: str, device: str, faster: str) -> str:
    """The device computes no faster in bf16."""
    return f"{precision} is emulated here: {device} has no bfloat16 arithmetic; {faster} is faster"


@kind_of_note(flag="--precision")
def fp16_slow_on_cpu(*, precision: str) -> str:
    """CPUs are slow in float16."""
    return f"{precision} is slow here: few CPUs compute in float16; amp-bf16 needs no loss scaling"


@kind_of_note(flag="--precision")
def fp8_emulated() -> str:
    """CPUs have no float8."""
    return "fp8 is emulated here: numbers are rounded to float8 and multiplied in their own type"


@kind_of_note(flag="--pinned-memory")
def pinned_memory_ignored() -> str:
    """There is no GPU that pinned memory serves."""
    return "pinned memory is ignored here: there is no GPU to copy to"


@kind_of_note(flag="--threads")
def more_threads_than_processors(*, threads: int, processors: int) -> str:
    """Threads share processors."""
    return f"{threads} threads share {processors} processors here: more threads than those are slower"


@kind_of_note(flag="--threads")
def processors_shared(*, share: float, room: int | None, setting: str) -> str:
    """Other programs use processors of the run. room: threads that fit beside them; setting: how waiting threads yield."""
    taken = f"other programs use {100 * share:.0f} % of this machine's processors"
    fewer = "" if room is None else f"; --threads {room} takes what they leave"
    spins = ""
    if setting:
        spins = (
            "; PyTorch's threads keep their cores while they wait, because it was loaded before "
            f"gpuwise: set {setting} before Python starts"
        )
    return f"{taken}, so steps take longer than on a free one{fewer}{spins}."


@kind_of_note(flag="--accumulate")
def micro_batches_left_over(*, left_over: int) -> str:
    """Micro-batches of the last epoch that fill no step."""
    batches = "1 micro-batch" if left_over == 1 else f"{left_over:,} micro-batches"
    return f"{batches} at the end of the last epoch do not fill a step, and are not trained on."


# The folder of the run.


@kind_of_note()
def folder_open_to_everybody(*, folder: str) -> str:
    """Others can replace the run's checkpoints."""
    return (
        f"everybody on this machine can write to the run folder {folder}, and so replace or remove its checkpoints: "
        f"chmod o-w {folder}."
    )


@kind_of_note()
def continued_with_other_settings(*, changes: str) -> str:
    """A run continues with another strategy."""
    batches = "; batch norm's more, whose statistics are those of a micro-batch" if "micro_batch" in changes else ""
    return f"the run continues with other settings ({changes}): its numbers will differ in their last bits{batches}."


@kind_of_note()
def continued_with_another_job(*, changes: str) -> str:
    """A run continues with a job that was changed."""
    return f"the job has changed ({changes}): from here on it trains otherwise than it began."


@kind_of_note(flag="--steps")
def continued_to_another_length(*, before: int, steps: int) -> str:
    """A run continues to another number of steps."""
    return f"the run was to take {before:,} steps, now it takes {steps:,}; its schedule is that of the new length from here on."


@kind_of_note(flag="--run")
def continues_run(*, folder: str, step: int) -> str:
    """The run goes on from a checkpoint."""
    return f"continues the run in {folder} after step {step:,}."


@kind_of_note()
def random_numbers_drawn_anew(*, before: str, mesh: str) -> str:
    """A run goes on under another mesh, whose ranks have no random state in the checkpoint."""
    return f"random numbers (dropout) are drawn anew: the checkpoint is of the mesh {before}, and this is {mesh}."


@kind_of_note()
def damaged_checkpoints(*, step: int, damaged: str) -> str:
    """The newest checkpoints cannot be read; an older one is taken."""
    return f"damaged, and passed over for the checkpoint of step {step}: {damaged}."


@kind_of_note()
def files_of_others_kept(*, files: str, checkpoint: str, folder: str) -> str:
    """Somebody's own files were in the way of a checkpoint."""
    return f"{files} in {checkpoint} is no part of a checkpoint, and stays in {folder}."


@kind_of_note()
def checkpoint_not_removed(*, checkpoint: str, problem: str) -> str:
    """An old checkpoint stays on the disk."""
    return f"the old checkpoint {checkpoint} could not be removed: {problem}."


@kind_of_note(flag="--epochs")
def trained_for_one_epoch() -> str:
    """The user does not say how long the run is."""
    return "trained for one epoch; --epochs or --steps changes it."


@kind_of_note()
def last_save_not_begun(*, save_s: float, left_s: float) -> str:
    """The time left was too short for a last checkpoint."""
    return (
        f"the last save was not begun: it takes {format_duration(save_s)} and {format_duration(left_s)} were left; "
        "the checkpoint before it stands."
    )


@kind_of_note()
def not_written(*, problem: str) -> str:
    """The log or the page of the run could not be written."""
    return problem


# What was trained.


@kind_of_note()
def evaluation_failed(*, problem: str) -> str:
    """The job's evaluate raised an error."""
    return problem


@kind_of_note()
def no_gradient(*, parameters: str) -> str:
    """The loss does not depend on some parameters."""
    return (
        f"no gradient reaches {parameters}: the loss does not depend on them, so they stay as they are; "
        "use them in the model's forward, or set requires_grad to False."
    )


@kind_of_note()
def not_given_to_the_optimizer(*, parameters: str) -> str:
    """The job's optimizer does not update some parameters."""
    return (
        f"{parameters} have gradients, but the job's optimizer was not given them, so they stay as they "
        "are; give it model.parameters(), or set requires_grad to False."
    )


@kind_of_note()
def no_update(*, steps: int, why: str) -> str:
    """No step of the run changed the model."""
    return f"no update was made in {steps:,} steps, so nothing was trained: {why}."


@kind_of_note(flag="--optimizer-kernels")
def not_finite_after_update(*, parameters: str) -> str:
    """The first update made numbers that are not finite."""
    return (
        f"{parameters}: values or optimizer state that are not finite after the first update. "
        "Try --optimizer-kernels for-loop or --precision fp32, and a lower learning rate."
    )


@kind_of_note(flag="--precision")
def steps_below_resolution(*, parameters: str, dtype: str, learning_rate: float, in_16_bits: bool) -> str:
    """The first update moved nothing of some parameters, because it is too small for their type."""
    keep = "--precision amp-bf16, which keeps parameters in fp32, or " if in_16_bits else ""
    return (
        f"{parameters}: nothing moved in the first update, because its steps are below the resolution of "
        f"{dtype} at a learning rate of {learning_rate:.3g}. Try {keep}a larger learning rate."
    )


@kind_of_note(flag="--optimizer-kernels")
def nothing_moved(*, parameters: str, optimizer: str) -> str:
    """The first update moved nothing of some parameters, though they have gradients."""
    return (
        f"{parameters}: nothing moved in the first update, though there were gradients: {optimizer} does "
        "not train them. Try --optimizer-kernels for-loop, or another optimizer."
    )


@kind_of_note(flag="--precision")
def few_numbers_moved(*, share: float) -> str:
    """The first update moved few numbers of parameters in 16 bits."""
    return (
        f"{share:.0%} of the 16-bit numbers with a gradient moved in the first update; the steps of the "
        "others are below their resolution. Try --precision amp-bf16, which keeps parameters in fp32, or a larger "
        "learning rate."
    )
