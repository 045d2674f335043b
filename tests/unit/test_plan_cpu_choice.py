"""What a CPU trains with: each choice with its reason, and only where it pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from test_plan_synthetic import synthetic_trace

from gpuwise.cost.forecast import Forecast, Interval
from gpuwise.cost.price import price
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.notes import sentences
from gpuwise.plan.cpu.choice import CpuChoice, Price, choose
from gpuwise.plan.cpu.compile_time import KERNEL_S, LOADING_S, compile_s, drawing_s, pays_back_after, slowed
from gpuwise.strategy import Strategy
from gpuwise.trace import Communication, Trace
from gpuwise.trace.tables import COLUMNS, KINDS, NO_GROUP, NO_LAYOUT

CPU = Chip(
    "here-cpu",
    "AMD",
    "two cores",
    "cpu",
    architecture="Zen 4",
    sm_count=2,
    boost_clock_hz=2.5e9,
    memory_bandwidth_bytes_per_s=2e10,
    peak_flops_per_s={"fp32": 1.6e11, "bf16": 3.2e11},
)
OLD_CPU = replace(CPU, peak_flops_per_s={"fp32": 1.6e11})
GENERATED = 30


def trace_of(strategy: Strategy, *, images: bool, random_numbers: int = 0) -> Trace:
    """A step with a convolution, random numbers and generated kernels where it would have them."""
    trace = synthetic_trace(micro_batch=strategy.micro_batch, strategy=strategy)
    values, kinds = trace.operations.values.copy(), trace.operations.kind.copy()
    if images:
        kinds[0] = KINDS.index("conv")
    if random_numbers:
        kinds[1] = KINDS.index("random")
        values[1, COLUMNS.index("bytes_written")] = 4 * random_numbers
    operations = replace(trace.operations, kind=kinds, values=values)
    if strategy.compile:
        more = np.repeat(values[:1], GENERATED, axis=0)
        operations = replace(
            operations,
            name=(*operations.name, *("fused.elementwise",) * GENERATED),
            kind=np.append(kinds, [KINDS.index("elementwise")] * GENERATED),
            dtype=(*operations.dtype, *("float32",) * GENERATED),
            values=np.concatenate([values, more]),
            channels_last=np.append(operations.channels_last, [NO_LAYOUT] * GENERATED),
            group=np.append(operations.group, [NO_GROUP] * GENERATED),
        )
    return replace(trace, operations=operations)


def prices(
    step_s: Callable[[Strategy], float], *, images: bool = False, fits: Callable[[Strategy], bool] = lambda strategy: True
) -> tuple[Price, list[Strategy]]:
    """A Price with these steps, and the list of what it was asked."""
    base = price(synthetic_trace(micro_batch=1), Communication(), Cluster(CPU, memory_bytes=2**40), strategy=Strategy())
    requests: list[Strategy] = []

    def of(strategy: Strategy) -> tuple[Forecast, Trace]:
        requests.append(strategy)
        value = step_s(strategy)
        memory = replace(base.memory, fits=fits(strategy))
        forecast = replace(base, strategy=strategy, step_time_s=Interval(value, value / 2, value * 2), memory=memory)
        return forecast, trace_of(strategy, images=images)

    return of, requests


def half_as_long(strategy: Strategy) -> float:
    return 0.4 if strategy.precision == "amp-bf16" else 0.8


def told(choice: CpuChoice) -> str:
    return " | ".join(sentences(choice.reasons))


def test_bf16_where_the_cpu_has_it_and_it_is_faster():
    of, _ = prices(half_as_long)
    choice = choose(of, Strategy(micro_batch=2), CPU)
    assert (choice.strategy.precision, choice.strategy.channels_last, choice.strategy.compile) == ("amp-bf16", False, False)
    assert "amp-bf16: this CPU multiplies bfloat16 numbers faster" in told(choice)
    assert choice.strategy.micro_batch == 2


def test_fp32_where_the_cpu_has_no_bf16_or_gains_too_little():
    of, requested = prices(half_as_long)
    assert choose(of, Strategy(), OLD_CPU).strategy.precision == "fp32"
    assert len(requested) == 1
    of, _ = prices(lambda strategy: 0.75 if strategy.precision == "amp-bf16" else 0.8)
    assert choose(of, Strategy(), CPU) == CpuChoice(of(Strategy())[0], ())


def test_convolutions_take_bf16_with_their_channels_last():
    of, requested = prices(half_as_long, images=True)
    choice = choose(of, Strategy(), CPU)
    assert (choice.strategy.precision, choice.strategy.channels_last) == ("amp-bf16", True)
    assert "amp-bf16, channels-last" in told(choice)
    assert len(requested) == 2


def test_convolutions_of_fp32_take_the_faster_layout():
    of, _ = prices(lambda strategy: 0.7 if strategy.channels_last else 0.8, images=True)
    choice = choose(of, Strategy(), OLD_CPU)
    assert choice.strategy.channels_last
    assert told(choice).startswith("channels-last: ")
    of, _ = prices(lambda strategy: 0.79 if strategy.channels_last else 0.8, images=True)
    assert not choose(of, Strategy(), OLD_CPU).strategy.channels_last


def test_what_the_user_said_stays():
    of, requested = prices(half_as_long, images=True)
    start = Strategy(precision="fp32", channels_last=False)
    choice = choose(of, start, CPU, fixed=["precision", "channels_last"])
    assert (choice.strategy, choice.reasons) == (start, ())
    assert requested == [start]
    assert choose(of, start, CPU, fixed=["channels_last"]).strategy == start.but(precision="amp-bf16")


def test_a_short_step_is_left_as_it_is():
    of, requested = prices(lambda strategy: 0.001)
    choice = choose(of, Strategy(), CPU, steps=10**6)
    assert choice.strategy == Strategy()
    assert "too short" in told(choice)
    assert len(requested) == 1


def test_what_cannot_be_traced_or_does_not_fit_is_passed_over():
    def refused(strategy: Strategy) -> float:
        if strategy.precision == "amp-bf16":
            raise UnsupportedError("not in bf16.")
        return 0.8

    of, _ = prices(refused)
    assert choose(of, Strategy(), CPU).strategy.precision == "fp32"
    of, _ = prices(half_as_long, fits=lambda strategy: strategy.precision == "fp32")
    assert choose(of, Strategy(), CPU).strategy.precision == "fp32"
    of, _ = prices(half_as_long, fits=lambda strategy: strategy.precision != "fp32")
    assert choose(of, Strategy(), CPU).strategy.precision == "amp-bf16"
    of, _ = prices(refused)
    with pytest.raises(UnsupportedError, match="not in bf16"):
        choose(of, Strategy("amp-bf16"), CPU, fixed=["precision"])


# --- compiling ---


def a_quarter_off(strategy: Strategy) -> float:
    return 0.6 if strategy.compile else 0.8


def test_a_long_run_is_compiled_and_a_short_one_not():
    takes_s = LOADING_S + GENERATED * KERNEL_S
    after = pays_back_after(takes_s, eager_step_s=0.8, compiled_step_s=0.6)
    of, requested = prices(a_quarter_off)
    long = choose(of, Strategy(), OLD_CPU, steps=after + 1)
    assert (long.strategy.compile, long.compile_s) == (True, pytest.approx(takes_s))
    assert told(long) == f"compiled: compiling takes about {round(takes_s)} s and pays back after {after} steps"
    short = choose(of, Strategy(), OLD_CPU, steps=after - 1)
    assert (short.strategy.compile, short.compile_s) == (False, 0.0)
    assert told(short).endswith(f"pays back after {after} steps, the run has {after - 1}")
    requested.clear()
    assert "too few to pay" in told(choose(of, Strategy(), OLD_CPU, steps=10))
    assert not any(strategy.compile for strategy in requested)  # not even traced


def test_nothing_is_compiled_unasked_where_the_run_has_no_known_end():
    of, requested = prices(a_quarter_off)
    assert not choose(of, Strategy(), OLD_CPU).strategy.compile
    assert len(requested) == 1


def test_what_the_user_compiles_says_what_that_takes():
    of, _ = prices(a_quarter_off)
    choice = choose(of, Strategy(compile=True), OLD_CPU, fixed=["compile"], steps=5)
    assert choice.strategy.compile
    assert choice.compile_s == pytest.approx(LOADING_S + GENERATED * KERNEL_S)


def test_no_compiler_no_compiling():
    of, _ = prices(a_quarter_off)
    choice = choose(of, Strategy(), OLD_CPU, steps=10**6, compiler=False)
    assert not choice.strategy.compile
    assert "no C++ compiler" in told(choice)


def test_a_small_gain_of_compiling_is_none():
    of, _ = prices(lambda strategy: 0.76 if strategy.compile else 0.8)
    choice = choose(of, Strategy(), OLD_CPU, steps=10**6)
    assert not choice.strategy.compile
    assert "hardly be faster" in told(choice)


def test_random_numbers_are_what_compiled_steps_are_slow_at():
    eager = trace_of(Strategy(), images=False, random_numbers=1000)
    runs = 4  # of the operation a micro-batch
    assert drawing_s(eager, CPU) == pytest.approx(runs * 1000 * 60 / (2.5e9 * 2))
    assert drawing_s(trace_of(Strategy(), images=False), CPU) == 0


def test_a_slowed_step_is_longer_in_all_that_is_said_of_it():
    of, _ = prices(lambda strategy: 0.5)
    before = replace(of(Strategy())[0], mfu=0.3, energy_j=10.0)
    after = slowed(before, 0.25)
    assert (after.step_time_s, after.mfu, after.energy_j) == (Interval(0.75, 0.375, 1.5), pytest.approx(0.2), 15.0)
    assert after.throughput == pytest.approx(before.throughput / 1.5)
    assert "random numbers of compiled steps are drawn one by one: 250 ms a step" in after.assumptions
    assert slowed(before, 0.0) is before


def test_time_to_compile_is_that_of_compiled_steps_alone():
    assert compile_s(trace_of(Strategy(), images=False)) == 0
    assert compile_s(trace_of(Strategy(compile=True), images=False)) == pytest.approx(LOADING_S + GENERATED * KERNEL_S)
    assert pays_back_after(40.0, eager_step_s=1.0, compiled_step_s=1.0) == float("inf")
    assert pays_back_after(40.0, eager_step_s=1.0, compiled_step_s=0.5) == 80
