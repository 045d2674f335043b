"""The data file of the cost model beside its kernels: complete and in range."""

from dataclasses import replace

import pytest

from gpuwise.cost.clock import busy_share, half_rate_gain, sustained_clock, sustained_share, sustained_tensor_share
from gpuwise.cost.kernels.times import hardware_of
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import units_for
from gpuwise.hardware.catalog import Catalog
from gpuwise.trace.tables import PHASES


def test_shares_are_shares():
    power = parameters().power
    assert set(power) == {"waiting", "bandwidth", "arithmetic_root", "composed"}
    assert 0 < power["waiting"] < power["composed"] <= 1


def test_host_time_covers_every_phase():
    assert set(parameters().host_operation_s) == set(PHASES)


def test_hosts_are_of_chips_in_the_catalog():
    chips = Catalog().chips.values()
    known = {chip.kind for chip in chips} | {
        ".".join(map(str, chip.compute_capability)) for chip in chips if chip.compute_capability
    }
    assert set(parameters().host_factor) <= known
    low, high = parameters().host_spread
    assert low < min(parameters().host_factor.values()) < 1 < max(parameters().host_factor.values()) < high


def test_named_chips_are_in_the_catalog():
    chips = Catalog().chips
    assert set(parameters().context_bytes) - {"gpu", "cpu", "systolic"} <= set(chips)
    architectures = {chip.architecture for chip in chips.values()}
    assert set(parameters().matrix_fp32_per_vector) <= architectures


def test_desktop_cards_sustain_their_clock_and_low_power_cards_do_not():
    chips = Catalog().chips
    for name in ("rtx-3090", "rtx-4090", "rtx-2080-ti", "v100-sxm2-32gb", "gtx-1080-ti", "xeon-8380", "mi300x"):
        assert sustained_share(chips[name], parameters()) > 0.95
    for name in ("t4", "l4", "p4"):
        assert sustained_share(chips[name], parameters()) < 0.7
    assert (
        sustained_tensor_share(chips["h100-80gb-pcie"], parameters())
        < sustained_tensor_share(chips["h100-80gb-sxm"], parameters())
        < 1
    )


def test_an_a100_multiplies_random_numbers_as_much_slower_than_zeros_as_was_measured():
    """257 against 295 TFLOP/s at 8,192 cubed and 400 W (Horace He, 2024)."""
    assert sustained_tensor_share(Catalog().chips["a100-80gb-sxm"], parameters()) == pytest.approx(257 / 295, rel=0.01)


def test_tensor_cores_need_the_third_power_of_their_clock_down_to_the_lowest_voltage():
    chip, figures = Catalog().chips["a100-80gb-sxm"], parameters()
    need_w = figures.power_watts_per_tensor_tflops["8.0"] * 312

    def share(watts):
        return sustained_tensor_share(replace(chip, tdp_w=watts), figures)

    floor, lowest_w = figures.voltage_floor, figures.voltage_floor**3 * need_w
    assert share(2 * need_w) == share(need_w) == 1
    assert share(need_w / 2) == pytest.approx(0.5 ** (1 / 3))
    assert share(lowest_w) == pytest.approx(floor)
    assert share(lowest_w / 2) == pytest.approx(floor / 2)
    rising = [share(watts) for watts in range(50, 800, 10)]
    assert rising == sorted(rising)


def test_tensor_cores_are_slower_for_minutes_than_in_a_table_of_kernels():
    chip = Catalog().chips["a100-80gb-sxm"]
    share = sustained_tensor_share(chip, parameters())
    for dtype in ("bfloat16", "float16"):
        units = units_for(chip, dtype=dtype, kind="gemm", precision="bf16", parameters=parameters())
        sustained, boost = (hardware_of(chip, parameters(), units=units, busy=each) for each in (1.0, 0.0))
        assert sustained_clock(chip, units, parameters(), busy=0.0) == 1
        assert boost.peak_flops_per_s == 312e12
        assert sustained.peak_flops_per_s == pytest.approx(share * 312e12)
        assert sustained.clock_hz == pytest.approx(share * chip.boost_clock_hz)
        assert sustained.bandwidth_bytes_per_s == boost.bandwidth_bytes_per_s


@pytest.mark.parametrize("name", ["a100-80gb-sxm", "h100-80gb-sxm", "b200-180gb-sxm", "t4"])
def test_tensor_cores_that_wait_for_memory_keep_their_clock(name):
    chip = Catalog().chips[name]
    units = units_for(chip, dtype="float16", kind="gemm", precision="amp-fp16", parameters=parameters())
    shares = [sustained_clock(chip, units, parameters(), busy=busy) for busy in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == shares[1] == 1  # a tenth of the work needs a tenth of the power
    assert shares[-1] < 0.9


def test_how_busy_arithmetic_is_follows_from_both_times():
    assert busy_share(1.0, 4.0) == 0.25
    assert busy_share(4.0, 1.0) == busy_share(4.0, 0.0) == 1


def test_vector_units_are_as_fast_in_a_table_of_kernels():
    chip = Catalog().chips["t4"]
    units = units_for(chip, dtype="float32", kind="gemm", precision="fp32", parameters=parameters())
    shares = {sustained_clock(chip, units, parameters(), busy=each) for each in (1.0, 0.0)}
    assert shares == {sustained_share(chip, parameters())}
    assert hardware_of(chip, parameters(), units=units).clock_hz == chip.boost_clock_hz


def test_only_tensor_cores_of_half_rate_reach_more_of_their_peak():
    def gain(name: str, dtype: str) -> float:
        chip = Catalog().chips[name]
        units = units_for(chip, dtype=dtype, kind="gemm", precision="amp-fp16", parameters=parameters())
        return half_rate_gain(chip, units, parameters())

    half_rate = ("rtx-2080-ti", "rtx-3090", "rtx-4090", "rtx-5090")
    assert {gain(name, "float16") for name in half_rate} == {parameters().half_rate_gain}
    assert parameters().half_rate_gain > 1
    for name in ("titan-rtx", "rtx-a6000", "l4", "t4", "v100-sxm2-32gb", "a100-80gb-sxm", "h100-80gb-sxm", "rx-7900-xtx"):
        assert gain(name, "float16") == 1.0
    assert gain("rtx-4090", "float32") == 1.0  # vector units
