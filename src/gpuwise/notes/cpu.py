"""Notes on the settings that are chosen for a CPU: precision, memory layout and compilation."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_duration


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
