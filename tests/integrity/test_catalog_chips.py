"""The catalog's data about chips and links, apart from the code that reads it.

A row that fails a check for a known reason carries a caveat in the data; a caveat that is not needed fails too.
"""

import re

import pytest

from gpuwise.hardware import Catalog
from gpuwise.hardware.rows import latest_day

CATALOG = Catalog()
CHIPS = list(CATALOG.chips.values())
SAYS_SO = ("memory", "derived", "assumed", "estimate", "halved", "copied")  # what an unverified source calls itself
ADDED = {
    "rtx-pro-6000-blackwell-max-q",
    "h100-96gb-hbm2e",
    "quadro-rtx-5000",
    "quadro-rtx-8000",
    "rtx-a4500",
    "rtx-a5500",
    "rtx-2070-max-q",
    "rtx-2080-max-q",
    "i9-10940x",
    "i7-12700h",
}
AT_HOME = 197  # boards, laptops, Macs and CPUs that people run models on at home

# fp16 multiply-adds a clock and multiprocessor, fp32 accumulate: NVIDIA's architecture whitepapers by compute
# capability; AMD's and Intel's by architecture. GeForce runs at half of the first (whitepapers of Turing and later).
FMAS = {
    (7, 0): 512,
    (7, 5): 512,
    (8, 0): 1024,
    (8, 6): 512,
    (8, 7): 1024,
    (8, 9): 512,
    (9, 0): 2048,
    (10, 0): 4096,
    (10, 3): 4096,
    (12, 0): 512,
    (12, 1): 512,
    (6, 0): 128,
}
FMAS_BY_ARCHITECTURE = {
    "GCN 5.0": 128,
    "GCN 5.1": 128,
    "CDNA 1.0": 512,
    "CDNA 2.0": 512,
    "CDNA 3.0": 1024,
    "CDNA 4.0": 2048,
    "RDNA 1.0": 128,
    "RDNA 2.0": 128,
    "RDNA 3.0": 256,
    "RDNA 3.5": 256,
    "RDNA 4.0": 512,
    "Generation 12.5": 2048,
    "Xe-HPG": 1024,
    "Xe2-HPG": 1024,
    "Xe2-LPG": 1024,
}


def sheet_and_derived(chip):
    """The rate of the sheet and units × FMAs × 2 × clock in its natural precision; None where not known."""
    peak, clock = chip.peak_flops_per_s, chip.boost_clock_hz
    if clock is None or chip.kind == "cpu":
        return None
    fmas = FMAS.get(chip.compute_capability) or FMAS_BY_ARCHITECTURE.get(chip.architecture)
    if fmas and "fp16" in peak and chip.sm_count:
        geforce = chip.name.startswith("GeForce") and chip.compute_capability >= (7, 5)
        return peak["fp16"], chip.sm_count * fmas * (0.5 if geforce else 1) * 2 * clock
    if "fp32" in peak and chip.cuda_cores:
        return peak["fp32"], chip.cuda_cores * 2 * clock
    return None


def test_counts():
    assert {chip.id for chip in CHIPS} >= ADDED
    assert len(CHIPS) == 140 + len(ADDED) + AT_HOME
    assert len(CATALOG.links) == 54


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.id)
def test_every_figure_has_source_and_date(chip):
    for name in chip.figures:
        source = chip.source_of(name)
        assert source.text.strip(), name
        assert latest_day(source.as_of) is not None, name
        assert source.verified or any(word in source.text for word in SAYS_SO), (name, source)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.id)
def test_memory_of_the_writer_is_no_verified_source(chip):
    for name in chip.figures:
        source = chip.source_of(name)
        assert not (source.verified and re.search(r"\bmemory\b", source.text)), (name, source)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.id)
def test_peak_agrees_with_units_and_clock(chip):
    known = sheet_and_derived(chip)
    agrees = known is None or abs(known[0] / known[1] - 1) <= 0.15
    assert agrees == ("peak" not in chip.caveats), known


# Each rate over the dense one of fp16: NVIDIA's A100, H100, Ada and RTX Blackwell whitepapers. GeForce halves what accumulates
# in fp32, not fp4 and int8. AMD's int8 is the rate of fp16 before CDNA 3.0 and RDNA 4.0 (gpuopen.com,
# using_matrix_core_amd_rdna4), bf16 half of it on CDNA 1.0. Volta has four int8 products where fp32 has one.
OVER_FP16 = {"tf32": 0.5, "fp16": 1, "bf16": 1, "fp8": 2, "int8": 2, "fp4": 4}
SLOW_INT8 = ("CDNA 1.0", "CDNA 2.0", "RDNA 3.0", "RDNA 3.5")
# The share of units times boost clock that a sheet states: Hopper's cards run their tensor cores below the boost clock,
# rates of Blackwell modules are rounded, and the L4 is listed with 60 multiprocessors where its 7,424 cores make 58.
STATED_SHARE = {
    "l4": 0.965,
    "h100-80gb-pcie": 0.923,
    "h100-94gb-nvl": 0.866,
    "h200-141gb-nvl": 0.866,
    "b200-180gb-sxm": 0.944,
    "gb200-186gb": 0.974,
    "b300-288gb-sxm": 0.913,
}
APART = {
    ("b300-288gb-sxm", "int8"),
    ("b300-288gb-sxm", "fp4"),  # Blackwell Ultra: half as many again, and int8 cut
}


def derived_rate(chip, name):
    """The dense rate of a precision by units, operations a clock and boost clock; None where the architecture is not listed."""
    fmas = FMAS.get(chip.compute_capability) or FMAS_BY_ARCHITECTURE.get(chip.architecture)
    if not (fmas and chip.sm_count and chip.boost_clock_hz) or name not in OVER_FP16 or "peak" in chip.caveats:
        return None
    over = OVER_FP16[name]
    if name == "int8" and chip.architecture in SLOW_INT8:
        over = 1
    if name == "int8" and chip.architecture == "Volta":
        over = 0.5
    if name == "bf16" and chip.architecture == "CDNA 1.0":
        over = 0.5
    geforce = chip.name.startswith("GeForce") and chip.compute_capability >= (7, 5) and name not in ("int8", "fp4")
    return chip.sm_count * fmas * 2 * chip.boost_clock_hz * over * (0.5 if geforce else 1) * STATED_SHARE.get(chip.id, 1)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.id)
def test_every_rate_agrees_with_units_and_clock(chip):
    for name, rate in chip.peak_flops_per_s.items():
        derived = derived_rate(chip, name)
        if derived is not None and (chip.id, name) not in APART:
            assert rate == pytest.approx(derived, rel=0.02), name


def test_every_rate_is_checked_of_most_gpus():
    gpus = [chip for chip in CHIPS if chip.vendor in ("NVIDIA", "AMD") and chip.kind.startswith("gpu") and chip.year >= 2018]
    checked = [chip for chip in gpus if derived_rate(chip, "fp16") is not None]
    assert len(checked) > 0.9 * len(gpus)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.id)
def test_memory_bandwidth_agrees_with_channels_and_data_rate(chip):
    """A channel is 64 bits wide; of LPDDR too, where the data counts pairs of its 32-bit channels."""
    channels = re.fullmatch(r"\w+-(\d+) x(\d+)", chip.memory_type or "")
    if chip.kind != "cpu" or channels is None or chip.memory_bandwidth_bytes_per_s is None:
        return
    transfers_per_s, count = int(channels[1]) * 1e6, int(channels[2])
    assert chip.memory_bandwidth_bytes_per_s == pytest.approx(8 * count * transfers_per_s, rel=0.02)


# KiB of shared memory a multiprocessor has by compute capability: CUDA C++ Programming Guide, technical specifications.
SHARED_MEMORY_KIB = {(7, 0): 96, (7, 5): 64, (8, 0): 164, (8, 6): 100, (8, 7): 164, (8, 9): 100, (9, 0): 228}
SHARED_MEMORY_KIB |= {(10, 0): 228, (10, 3): 228, (12, 0): 100, (12, 1): 100}


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.id)
def test_shared_memory_is_that_of_the_compute_capability(chip):
    if chip.shared_memory_per_sm_bytes is not None and chip.compute_capability in SHARED_MEMORY_KIB:
        assert chip.shared_memory_per_sm_bytes == SHARED_MEMORY_KIB[chip.compute_capability] * 2**10


def test_peak_check_covers_most_gpus():
    gpus = [chip for chip in CHIPS if chip.vendor in ("NVIDIA", "AMD") and chip.kind.startswith("gpu")]
    assert sum(sheet_and_derived(chip) is not None for chip in gpus) > 0.9 * len(gpus)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.id)
def test_int8_to_16_bit_ratio(chip):
    peak = chip.peak_flops_per_s
    half = max(peak.get("fp16", 0), peak.get("bf16", 0))
    if "int8" not in peak or not half:
        assert "int8" not in chip.caveats
        return
    # Pascal's fp16 is a token 1/64 rate: there the natural rate is fp32.
    ratio = peak["int8"] / max(half, peak.get("fp32", 0))
    agrees = min(abs(ratio / wanted - 1) for wanted in (0.5, 1, 2, 4)) <= 0.15
    assert agrees == ("int8" not in chip.caveats), ratio


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.id)
def test_rates_are_ordered(chip):
    peak = chip.peak_flops_per_s
    for low, high in (("fp64", "fp32"), ("tf32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4")):
        if low in peak and high in peak:
            assert peak[low] <= peak[high] * 1.001, (low, high)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.id)
def test_links_exist_and_agree(chip):
    if chip.link_id is None:
        return
    link = CATALOG.links[chip.link_id]
    if chip.link_bandwidth_bytes_per_s is not None:
        assert chip.link_bandwidth_bytes_per_s == pytest.approx(link.per_direction_bytes_per_s, rel=0.15)


@pytest.mark.parametrize("link", CATALOG.links.values(), ids=lambda link: link.id)
def test_link_rows(link):
    for name in link.figures:
        assert link.source_of(name).text
        assert latest_day(link.source_of(name).as_of) is not None
    if link.links_per_device and link.per_link_bytes_per_s and link.per_direction_bytes_per_s:
        product = link.links_per_device * link.per_link_bytes_per_s
        assert product == pytest.approx(link.per_direction_bytes_per_s, rel=0.04)  # PCIe figures are rounded
    if link.allreduce_busbw_bytes_per_s:
        assert link.allreduce_condition
        # In-switch reduction (NVLS) may pass the wire's rate a little.
        assert link.allreduce_busbw_bytes_per_s <= 1.1 * link.per_direction_bytes_per_s


@pytest.mark.parametrize(
    ("chip_id", "precision", "tera"),
    [
        ("h100-80gb-sxm", "bf16", 989.4),
        ("h100-80gb-pcie", "bf16", 756),
        ("a100-80gb-sxm", "bf16", 312),
        ("rtx-4090", "fp16", 165.2),
        ("rtx-3090", "fp16", 71.2),
        ("rtx-2080-ti", "fp16", 53.8),
        ("l4", "fp16", 121),
        ("h100-94gb-nvl", "bf16", 835.5),
        ("h200-141gb-sxm", "bf16", 989.4),
        ("mi300x", "bf16", 1307.4),
        ("b200-180gb-sxm", "bf16", 2250),
        ("t4", "fp16", 65),
        ("v100-sxm2-16gb", "fp16", 125),
    ],
)
def test_dense_rates_of_skus_often_confused(chip_id, precision, tera):
    assert CATALOG.chips[chip_id].peak_flops_per_s[precision] == pytest.approx(tera * 1e12)


def test_other_traps():
    chips = CATALOG.chips
    assert chips["a100-40gb-sxm"].memory_bandwidth_bytes_per_s == 1555e9
    assert chips["h100-80gb-sxm"].sm_count == 132
    assert chips["h100-80gb-sxm"].link_bandwidth_bytes_per_s == 450e9  # "900 GB/s" is both directions
    assert CATALOG.links["xgmi-mi300x"].per_link_bytes_per_s == 64e9  # to one peer
    assert "bf16" not in chips["t4"].peak_flops_per_s
    assert "bf16" not in chips["v100-sxm2-16gb"].peak_flops_per_s
    assert chips["rtx-4090"].link_id == "pcie4x16"


def test_chips_that_nothing_trains_on():
    for chip in CHIPS:
        text = re.search(r"inference only|cannot train", chip.notes) is not None
        assert chip.trains == (not text and chip.kind not in ("fpga", "neuromorphic") and "inferentia" not in chip.id), chip.id


# What is sold as one and PyTorch sees as several devices: the package, its devices, and its vendor's memory (GiB), bandwidth
# (GB/s), 16-bit rate (TFLOP/s; fp32 of the boards that have no such units) and power (W). AMD: Instinct MI250 and MI250X data
# sheets. Google: cloud.google.com/tpu/docs, v3 and tpu7x; of v2 Epoch AI. Intel: Max 1550 product specifications. AWS: Neuron
# documentation, architecture pages. NVIDIA: board specifications of K80, M60 and A16. Qualcomm: Cloud AI SDK, Architecture.
PACKAGES = {
    "mi250": ("MI250 module", 2, 128, 3277, 362.1, 560),
    "mi250x": ("MI250X module", 2, 128, 3277, 383, 560),
    "tpu-v2": ("TPU v2 chip", 2, 16, 700, 46, 280),
    "tpu-v3": ("TPU v3 chip", 2, 32, 900, 123, 450),
    "tpu-v7": ("TPU7x chip", 2, 192, 7380, 2307, 960),
    "intel-max-1550": ("Max 1550 card", 2, 128, 3277, 839, 600),
    "inferentia1": ("Inferentia chip", 4, 8, 50, 64, None),
    "inferentia2": ("Inferentia2 chip", 2, 32, 820, 190, None),
    "trainium1": ("Trainium1 chip", 2, 32, 820, 190, None),
    "trainium2": ("Trainium2 chip", 4, 96, 2900, 667, 500),
    "trainium3": ("Trainium3 chip", 4, 144, 4900, 671, 700),
    "k80-die": ("Tesla K80 board", 2, 24, 481.2, 8.226, 300),
    "k80-board": ("Tesla K80 board", 2, 24, 481.2, 8.226, 300),
    "m60-die": ("Tesla M60 board", 2, 16, 320.8, 9.65, 300),
    "a16-gpu": ("A16 board", 4, 64, 800.4, 71.6, 250),
    "qualcomm-ai100-ultra": ("Cloud AI 100 Ultra card", 4, 128, 548, 290, 150),
}
# Several dies, chiplets or cores that PyTorch sees as one device: NVIDIA Blackwell, AMD Instinct MI300 in its
# default partition (SPX), TPUs whose two cores work as one (Megacore), Gaudi 3, Apple's Ultra.
ONE_DEVICE = {
    "b200-180gb-sxm": 180,
    "gb200-186gb": 186,
    "b300-288gb-sxm": 288,
    "gh200-96gb": 96,
    "h100-94gb-nvl": 94,
    "mi300x": 192,
    "mi325x": 256,
    "mi355x": 288,
    "tpu-v4": 32,
    "tpu-v5e": 16,
    "tpu-v5p": 95,
    "tpu-v6e": 32,
    "gaudi2": 96,
    "gaudi3": 128,
    "apple-m2-ultra": 192,
}


def test_what_is_sold_as_one_and_seen_as_several():
    assert {chip.id for chip in CHIPS if chip.devices_per_package > 1} == set(PACKAGES)
    for id_, (package, devices, memory_gib, bandwidth, tflops, tdp_w) in PACKAGES.items():
        chip = CATALOG.chips[id_]
        peak = chip.peak_flops_per_s
        assert (chip.package, chip.devices_per_package) == (package, devices)
        assert chip.memory_bytes * devices == pytest.approx(memory_gib * 2**30)
        assert chip.memory_bandwidth_bytes_per_s * devices == pytest.approx(bandwidth * 1e9)
        rate = next(peak[name] for name in ("bf16", "fp16", "fp32") if name in peak)
        assert rate * devices == pytest.approx(tflops * 1e12, rel=0.01)
        assert chip.tdp_w is None if tdp_w is None else chip.tdp_w * devices == pytest.approx(tdp_w)
        source = chip.source_of("devices_per_package")
        assert source != chip.source
        assert re.search("two|four|eight|2, no|each|several", source.text), source
        assert "devices_per_package" in chip.figures


def test_what_is_several_dies_and_seen_as_one():
    for id_, memory_gib in ONE_DEVICE.items():
        chip = CATALOG.chips[id_]
        assert (chip.devices_per_package, chip.package, chip.memory_bytes) == (1, "", memory_gib * 2**30)
        assert "devices_per_package" not in chip.figures


def test_dies_are_those_that_are_sold_alone_too():
    """The die of an MI250 has the units, memory and rates of the MI210, those of a K80 board are alike."""
    die, alone = CATALOG.chips["mi250"], CATALOG.chips["mi210"]
    assert (die.sm_count, die.cuda_cores, die.memory_bytes) == (alone.sm_count, alone.cuda_cores, alone.memory_bytes)
    assert die.peak_flops_per_s["fp16"] == pytest.approx(alone.peak_flops_per_s["fp16"], rel=0.001)
    assert CATALOG.chips["k80-die"].peak_flops_per_s == pytest.approx(CATALOG.chips["k80-board"].peak_flops_per_s, rel=0.001)


def test_domains_of_links_count_devices():
    """A TPU v3 pod has 1,024 chips of two cores, eight MI250X modules sixteen dies, sixteen Trainium chips 32 cores."""
    domains = {id_: CATALOG.links[id_].domain_devices for id_ in ("ici-v3", "ici-v4", "xgmi-mi250x", "neuronlink2", "nvlink5")}
    assert domains == {"ici-v3": 2048, "ici-v4": 4096, "xgmi-mi250x": 16, "neuronlink2": 32, "nvlink5": 8}


@pytest.mark.parametrize(
    ("chip_id", "mib"),
    # total_memory in MiB as PyTorch prints it, from public training logs.
    [("t4", 15102), ("rtx-3090", 24268), ("rtx-4090", 24217), ("a100-40gb-sxm", 40536), ("a100-80gb-sxm", 81251)],
)
def test_usable_memory_is_what_pytorch_shows(chip_id, mib):
    assert CATALOG.chips[chip_id].usable_memory_bytes / 2**20 == pytest.approx(mib, rel=0.006)


def test_unverified_figures_are_visible():
    unverified = {chip.id for chip in CHIPS if chip.unverified}
    assert {"graphcore-bow", "sambanova-sn40l", "apple-m4", "epyc-7763"} <= unverified
    assert "tdp_w" not in CATALOG.chips["epyc-7763"].unverified  # codecarbon gives it
    assert "msrp_usd" in CATALOG.chips["quadro-p5000"].unverified
    assert CATALOG.chips["xeon-6980p"].source_of("memory_bandwidth_bytes_per_s").text == "hardwareluxx"
