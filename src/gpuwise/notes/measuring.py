"""Notes on a measurement: what disturbed it, what was left out, and whether its figures are used."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_bytes

# What disturbed it.


@kind_of_note()
def processors_used_by_others(*, share: float) -> str:
    """Other processes ran on the processors."""
    return f"other processes used {100 * share:.0f} % of the processors meanwhile"


@kind_of_note()
def processors_stolen(*, share: float) -> str:
    """The hypervisor gave processors to other machines."""
    return f"the hypervisor took {100 * share:.0f} % of the processors (steal)"


@kind_of_note()
def programs_waited(*, share: float) -> str:
    """More programs were ready than processors free."""
    return f"programs waited for a free processor {100 * share:.0f} % of the time"


@kind_of_note()
def stopped_by_container(*, stopped_s: float, processors: float | None) -> str:
    """The container's limit of processor time stopped the program."""
    limit = "" if processors is None else f" of {processors:g} processors"
    return f"the container's limit{limit} stopped the program for {stopped_s:.1f} s"


@kind_of_note()
def clock_fell(*, before_hz: float, after_hz: float) -> str:
    """The processors' clock was lower at the end."""
    return f"the clock fell from {before_hz / 1e9:.1f} to {after_hz / 1e9:.1f} GHz: thermal or power limit"


@kind_of_note()
def heat_lowered_clock(*, times: float) -> str:
    """The processors throttled."""
    return f"heat lowered the processors' clock {times:.0f} times"


@kind_of_note()
def machine_suspended(*, slept_s: float) -> str:
    """The machine slept."""
    return f"the machine was suspended for {slept_s:.0f} s"


@kind_of_note()
def system_clock_jumped(*, jumped_s: float) -> str:
    """Somebody set the clock."""
    return f"the system clock jumped by {jumped_s:.0f} s; times are from the monotonic clock"


@kind_of_note()
def gpu_was_busy(*, gpu: str, share: float) -> str:
    """A GPU had work before the measurement."""
    return f"{gpu} was busy {100 * share:.0f} % of the time before the measurement began"


@kind_of_note()
def gpu_memory_used_by_others(*, gpu: str, used_bytes: int) -> str:
    """Other programs had memory of a GPU."""
    return f"other programs held {format_bytes(used_bytes)} of {gpu}'s memory when the measurement began"


@kind_of_note()
def power_limit_lowered(*, limit_w: float, default_w: float, gpu: str = "") -> str:
    """A GPU's power limit is below the card's default. gpu: which, where there are several."""
    return f"the power limit is {limit_w:.0f} W, the card's default is {default_w:.0f} W" + (f" ({gpu})" if gpu else "")


@kind_of_note()
def gpu_clock_held_back(*, gpu: str, cause: str, share: float) -> str:
    """Heat or power lowered a GPU's clock for a share of the time."""
    return f"{cause} held back the clock of {gpu} {100 * share:.0f} % of the time"


@kind_of_note()
def gpu_clock_is_held_back(*, gpu: str, causes: str) -> str:
    """A GPU's clock is lowered now."""
    return f"the clock of {gpu} is held back: {causes}"


@kind_of_note()
def memory_changed(*, before_bytes_per_s: float, after_bytes_per_s: float) -> str:
    """Memory had another bandwidth at the end."""
    return (
        f"memory bandwidth was {before_bytes_per_s / 1e9:.3g} GB/s at first and {after_bytes_per_s / 1e9:.3g} at the end: "
        "others on this host use it, or its clock changed; forecasts are for the middle"
    )


# What was left out.


@kind_of_note()
def not_measured(*, gpu: str, device: str) -> str:
    """Such a GPU is not measured."""
    return f"{gpu} ({device}) is not measured: gpuwise measures the first kind of device of a machine"


@kind_of_note()
def stage_left_out(*, stage: str, problem: str) -> str:
    """A part of the measurement failed."""
    return f"{stage} left out: {problem}"


@kind_of_note()
def stage_died(*, stage: str, problem: str) -> str:
    """The process of a part of the measurement died."""
    return f"{stage}: {problem}"


@kind_of_note()
def rest_left_out(*, microbenchmarks: int) -> str:
    """Too many processes died."""
    return f"{microbenchmarks} microbenchmarks were left out after that"


@kind_of_note()
def no_peak(*, dtype: str, problem: str) -> str:
    """The device has no products in a type."""
    return f"no peak in {dtype}: {problem}"


@kind_of_note()
def hopelessly_slow(*, dtype: str, times: float) -> str:
    """Products in a type are much slower than in fp32."""
    return f"{dtype} runs {times:.0f} times slower than fp32 here: measured on one small product."


@kind_of_note()
def no_product(*, dtype: str, shape: str, problem: str) -> str:
    """A product cannot be computed."""
    return f"{dtype}: no product of {shape}: {problem}"


@kind_of_note()
def wrong_product(*, dtype: str, shape: str) -> str:
    """A product had a wrong result."""
    return f"{dtype}: the product of {shape} was wrong; it does not count as a peak."


@kind_of_note()
def copies_left_out(*, size_bytes: int, memory: str, problem: str) -> str:
    """There is no memory for copies of a size. memory: pinned or pageable."""
    return f"copies of {size_bytes >> 10} KiB, {memory}, were left out: {problem}"


@kind_of_note()
def memory_left_out() -> str:
    """There is too little memory to measure its bandwidth."""
    return "memory bandwidth was left out: too little memory is free."


@kind_of_note()
def collectives_left_out(*, problem: str) -> str:
    """Collectives cannot run here."""
    return f"collectives were left out: {problem}."


@kind_of_note()
def collectives_ended_early(*, problem: str) -> str:
    """A process of the collectives failed."""
    return f"collectives ended early: {problem}"


@kind_of_note()
def collective_problem(*, problem: str) -> str:
    """A collective does not run here."""
    return problem


# Whether its figures are used.


@kind_of_note()
def datasheet_of_another_processor(*, source: str) -> str:
    """The catalog does not know this processor."""
    return f"the datasheet figures are not of this very processor: {source}"


@kind_of_note()
def fit_failed(*, problem: str) -> str:
    """The process that fits the calibration died."""
    return problem


@kind_of_note()
def not_kept_busy() -> str:
    """No calibration was written, because others used the device."""
    return (
        "nothing was written, so forecasts stay as they were: other programs took practically all of the device that this one "
        "left; measure again while it is idle"
    )


@kind_of_note()
def not_kept_too_few() -> str:
    """No calibration was written, because too little was observed."""
    return "nothing was written: too few training steps were observed to fit a calibration"


@kind_of_note()
def not_kept_not_fitted() -> str:
    """No calibration was written, because it was not fitted."""
    return "nothing was written: the calibration was not fitted"


@kind_of_note()
def history_not_kept(*, problem: str) -> str:
    """What was validated is not kept for later forecasts."""
    return problem


@kind_of_note()
def ranks_not_kept() -> str:
    """Measured steps of several ranks are not kept for later forecasts."""
    return "steps of several ranks are not kept: forecasts of a mesh on this machine stay those of the model"
