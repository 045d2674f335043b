"""The data file of the cost model beside its kernels: complete and in range."""

from gpuwise.cost.bound import BOUNDS
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import sustained_peak, sustained_share, sustained_tensor_share, units_for
from gpuwise.hardware.catalog import Catalog
from gpuwise.trace.tables import PHASES


def test_shares_are_shares():
    assert set(parameters().power_share) == set(BOUNDS)
    assert all(0 < value <= 1 for value in parameters().power_share.values())


def test_host_time_covers_every_phase():
    assert set(parameters().host_operation_s) == set(PHASES)


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


def test_only_products_in_bf16_have_a_limit_of_their_own_for_minutes():
    chip = Catalog().chips["a100-80gb-sxm"]

    def peak(dtype, kind, *, for_minutes=True):
        units = units_for(chip, dtype=dtype, kind=kind, precision="bf16", parameters=parameters())
        return sustained_peak(chip, units, parameters(), kind=kind, for_minutes=for_minutes)

    assert peak("bfloat16", "gemm") == parameters().sustained_bf16_products["8.0"] * 312e12
    assert peak("bfloat16", "gemm") < peak("bfloat16", "attention") == peak("float16", "gemm") < 312e12
    assert peak("bfloat16", "gemm", for_minutes=False) == 312e12
