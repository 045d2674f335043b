"""The data file of the cost model beside its kernels: complete and in range."""

from gpuwise.cost.bound import BOUNDS
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import sustained_share, sustained_tensor_share
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
