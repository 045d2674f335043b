"""Notes on the settings that are chosen for a CPU: precision, memory layout and compilation."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import counted, format_duration, format_usd


@kind_of_note()
def bound_by_overhead() -> str:
    """Neither precision nor layout makes a short step faster."""
    return "a step is too short for precision or layout to matter: what it takes is overhead"


@kind_of_note()
def faster_setting(*, setting: str, why: str, step_s: float, before_s: float, precision: str) -> str:
    """A precision or a layout was chosen because steps are shorter with it. precision: of the step before."""
    return f"{setting}: {why}; {format_duration(step_s)} a step instead of {format_duration(before_s)} in {precision}"


@kind_of_note(flag="--compile")
def too_few_steps_to_compile(*, steps: float) -> str:
    """The run is too short for compiling to pay back."""
    return f"not compiled: {steps:,.0f} steps are too few to pay for it"


@kind_of_note()
def no_compiler() -> str:
    """There is nothing to compile with."""
    return "not compiled: no C++ compiler (CXX, else g++ or clang++) or no headers of Python"


@kind_of_note()
def cannot_be_compiled(*, problem: str) -> str:
    """Compiled steps cannot be priced."""
    return f"not compiled: {problem}"


@kind_of_note()
def compiled_does_not_fit() -> str:
    """Compiled steps need more memory than there is."""
    return "not compiled: compiled steps would not fit"


@kind_of_note(flag="--compile")
def compiled_hardly_faster(*, step_s: float) -> str:
    """Compiled steps save too little."""
    return f"not compiled: compiled steps would hardly be faster ({format_duration(step_s)})"


@kind_of_note(flag="--compile")
def compiling_pays_back_late(*, compile_s: float, after_steps: float, steps: float) -> str:
    """Compiling pays back after the end of the run."""
    return (
        f"not compiled: compiling takes about {compile_s:.0f} s and pays back after {after_steps:,} steps, "
        f"the run has {steps:,.0f}"
    )


@kind_of_note(flag="--compile")
def compiling_pays_back(*, compile_s: float, after_steps: float) -> str:
    """Compiling pays back within the run."""
    return f"compiled: compiling takes about {compile_s:.0f} s and pays back after {after_steps:,} steps"


@kind_of_note()
def cpu_alone(*, verdict: str, time_s: float, low_s: float, high_s: float, usd: float) -> str:
    """Whether this machine's CPU is enough to train the job, where no GPU is considered. usd: of electricity."""
    return f"{_VERDICTS.get(verdict, verdict)}: {_on_cpu(time_s, low_s, high_s, usd)}"


@kind_of_note()
def cpu_beside_a_gpu(
    *,
    verdict: str,
    time_s: float,
    low_s: float,
    high_s: float,
    usd: float,
    gpu: str,
    gpu_time_s: float,
    saved_s: float,
    gpu_usd: float,
) -> str:
    """Whether this machine's CPU is enough to train the job, beside the fastest single GPU. usd: of electricity."""
    saves = f"saves {format_duration(saved_s)} for {format_usd(gpu_usd)}" if saved_s > 0 else "saves nothing"
    return (
        f"{_VERDICTS.get(verdict, verdict)}: {_on_cpu(time_s, low_s, high_s, usd)}; the fastest GPU, {gpu}, takes "
        f"{format_duration(gpu_time_s)} with setting it up: it {saves}"
    )


@kind_of_note()
def gpu_is_mostly_set_up(*, setup_s: float, work_s: float) -> str:
    """A rented GPU is set up for longer than it works."""
    return f"setting a rented machine up takes {format_duration(setup_s)}, its training {format_duration(work_s)}"


@kind_of_note()
def gpu_waits_for_launches(*, share: float) -> str:
    """The job is too small to keep a GPU busy."""
    return f"the job is small: {share:.0%} of a step on the GPU is launching kernels, which a faster one does not shorten"


@kind_of_note(flag="--micro-batch")
def requests_held(*, per_s: float, samples: int, loaded_per_s: float, load: float, waiting_s: float) -> str:
    """What forward passes one after another answer. samples: of a request; waiting_s: mean at that load, M/D/1."""
    return (
        f"requests of {counted(samples, 'sample')}, one after another: up to {_rate(per_s)}; at {_rate(loaded_per_s)}, "
        f"{load:.0%} of that, one waits {format_duration(waiting_s)} on average if they come at random; "
        "--micro-batch changes it"
    )


# By the verdict of gpuwise.plan.cpu.enough.
_VERDICTS = {
    "enough": "your CPU is enough",
    "uncertain": "your CPU may be enough",
    "not-enough": "your CPU is not enough",
}


def _on_cpu(time_s: float, low_s: float, high_s: float, usd: float) -> str:
    power = "under a cent" if usd < 0.01 else format_usd(usd)
    return f"{format_duration(time_s)} ({format_duration(low_s)} to {format_duration(high_s)}) here for {power} of electricity"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f} a second" if per_s >= 10 else f"{per_s:.2g} a second"
