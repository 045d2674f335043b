"""Names of chips, DEVICE texts, links, filters, and what of them is here."""

import pytest

import gpuwise
from gpuwise.errors import InputError, UnknownNameError
from gpuwise.hardware import Catalog, Cpu, Gpu, detect_machine, link_inside, parse_device, parse_filter
from gpuwise.hardware.detect import detect_cpu, local_cpu_chip, match, match_gpu
from gpuwise.hardware.detect import machine as machine_module
from gpuwise.hardware.detect.cpu import vector_units

CATALOG = Catalog()


@pytest.mark.parametrize(
    ("text", "chip_id"),
    [
        ("h100-sxm", "h100-80gb-sxm"),
        ("xeon-8380", "xeon-8380"),
        ("cpu-xeon-8380", "xeon-8380"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("xeon-8480+", "xeon-8480plus"),
        ("mi300", "mi300x"),
        ("t4", "t4"),
        ("a100-pcie-80gb", "a100-80gb-pcie"),
        ("gh200", "gh200-96gb"),
        ("tpu-v5e", "tpu-v5e"),
        ("L40S", "l40s"),
        ("4080", "rtx-4080"),  # and no SUPER, no laptop
        ("RTX 3060", "rtx-3060-12gb"),
        ("geforce rtx 4070 ti", "rtx-4070-ti"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "rtx-3060-laptop"),
        ("NVIDIA RTX 2000 Ada Generation", "rtx-2000-ada"),
        ("AMD Radeon RX 6800", "rx-6800"),
        ("7900-xt", "rx-7900-xt"),
        ("m1-max", "apple-m1-max"),
        ("Apple M1 Max 8P+2E+24GPU", "apple-m1-max-24-core"),
        ("Apple M1 Max 8P+2E+32GPU", "apple-m1-max"),
        ("Apple M4 4P+6E+10GPU", "apple-m4"),
        ("dgx-spark", "gb10"),
        ("strix-halo", "radeon-8060s"),
        ("ryzen-ai-max+-395", "radeon-8060s"),
        ("Ryzen 9 5950X", "ryzen-5950x"),
    ],
)
def test_shorter_forms(text, chip_id):
    assert CATALOG.find_chip(text).id == chip_id


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a100-sxm", ["ambiguous", "a100-40gb-sxm, a100-80gb-sxm"]),
        ("h100", ["ambiguous", "h100-80gb-pcie"]),
        ("4060-ti", ["ambiguous", "rtx-4060-ti-8gb"]),
        ("rtx-6000", ["ambiguous", "rtx-6000-ada"]),
        ("rtx-4099", ["rtx-4090"]),
        ("cpu-rtx-4090", ["unknown chip"]),
        ("zzz", ["gpuwise chips"]),
        ("", ["unknown chip"]),
    ],
)
def test_names_that_do_not_name_one_chip(text, told):
    with pytest.raises(UnknownNameError) as caught:
        CATALOG.find_chip(text)
    assert all(words in str(caught.value) for words in told)


def test_device_texts():
    spec = parse_device("h100-sxm:8x4", catalog=CATALOG)
    assert (spec.chip.id, spec.cluster.devices_per_machine, spec.cluster.machines, spec.cluster.devices) == (
        "h100-80gb-sxm",
        8,
        4,
        32,
    )
    assert spec.cluster.inside.id == "nvlink4"
    assert parse_device("rtx-4090", catalog=CATALOG).cluster.devices == 1


@pytest.mark.parametrize("text", ["t4:", "t4:0", "t4:-1", "t4:8x0", "t4:8x", "t4:1.5", "t4:9999999", ":8", "", "t4:８"])
def test_bad_counts(text):
    with pytest.raises(InputError) as caught:
        parse_device(text, catalog=CATALOG)
    assert "h100-80gb-sxm:8x4" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("h100-sxm:9", "h100-80gb-sxm:8x2 (2 machines of 8, 16 devices)"),
        ("h100-sxm:16x4", "h100-80gb-sxm:8x8"),
        ("rtx-4090:100", "rtx-4090:16x7"),
        ("rtx-3090:17", "rtx-3090:16x2"),  # its bridge joins pairs: the machine is a PCIe one
        ("h100-sxm:1001", "h100-80gb-sxm:8x126 (126 machines of 8, 1008 devices)"),
        ("xeon-8380:100", "xeon-8380:8x13"),
    ],
)
def test_more_devices_than_a_machine_holds_are_named_as_several(text, told):
    with pytest.raises(InputError, match="no machine holds") as caught:
        parse_device(text, catalog=CATALOG)
    assert told in caught.value.ways_out[0]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100-sxm:64", "h100-80gb-sxm:8x8"),
        ("h100-sxm:1000", "h100-80gb-sxm:8x125"),
        ("rtx-4090:48", "rtx-4090:16x3"),
        ("tpu-v5e:512", "tpu-v5e:256x2"),
    ],
)
def test_more_devices_than_a_machine_holds_are_full_machines(text, name):
    spec = parse_device(text, catalog=CATALOG)
    assert spec.cluster == parse_device(name, catalog=CATALOG).cluster
    assert spec.cluster.name == name
    assert spec.assumed[-1].kind == "several-machines"
    assert spec.assumed[-1].text.endswith(name)
    assert parse_device(name, catalog=CATALOG).assumed == ()


@pytest.mark.parametrize("text", ["h100-sxm:8", "a100-40gb-sxm:16", "a100-80gb-pcie:8", "tpu-v5e:256", "gb200:72", "t4:16"])
def test_a_machine_holds_its_domain_and_what_is_sold(text):
    assert parse_device(text, catalog=CATALOG).cluster.machines == 1


def test_a_slip_of_the_hand_is_no_cluster():
    with pytest.raises(InputError, match="at most 1,000,000 make sense"):
        parse_device("t4:8x999999", catalog=CATALOG)


def offer(instance):
    return next(o for o in CATALOG.offers if o.instance == instance)


@pytest.mark.parametrize(
    ("what", "count", "link"),
    [
        ("h100-80gb-sxm", 8, "nvlink4"),
        ("h100-80gb-sxm", 1, None),
        ("rtx-4090", 2, "pcie4x16"),
        ("rtx-3090", 2, "pcie4x16"),
        ("rtx-4060-ti-16gb", 2, "pcie4x8"),
        ("a100-80gb-pcie", 2, "pcie4x16"),
        ("tpu-v5e", 8, "ici-v5e"),
        ("mi300x", 8, "xgmi-mi300x"),
        ("gtx-580", 2, "pcie2x16"),
        ("xeon-8380", 2, None),
        ("gb200-186gb", 72, "nvlink5-nvl72"),
    ],
)
def test_link_inside_a_machine_of_chips(what, count, link):
    result = link_inside(CATALOG.chips[what], count, catalog=CATALOG)
    assert (result and result.id) == link


@pytest.mark.parametrize(
    ("instance", "link"),
    [
        ("p5.48xlarge", "nvlink4"),
        ("Standard_NC48ads_A100_v4", "nvlink3-bridge-a100"),
        ("a2-megagpu-16g", "nvlink3"),
        ("Standard_NC96ads_A100_v4", "pcie4x16"),
        ("g5.48xlarge", "pcie4x16"),
        ("g6f.large", None),
        ("v2-8", "ici-v2"),
    ],
)
def test_link_inside_an_offer(instance, link):
    what = offer(instance)
    result = link_inside(what, what.count, catalog=CATALOG)
    assert (result and result.id) == link


def chips(text):
    return {chip.id for chip in CATALOG.chips.values() if parse_filter(text).matches(chip)}


def test_chip_filters():
    large = {
        chip.id
        for chip in CATALOG.chips.values()
        if (chip.kind, chip.vendor) == ("gpu-consumer", "NVIDIA") and (chip.memory_bytes or 0) >= 24e9
    }
    assert {"titan-rtx", "rtx-3090", "rtx-3090-ti", "rtx-4090", "rtx-5090"} <= large
    assert chips("memory>=24GB kind=gpu-consumer vendor=nvidia") == large
    assert chips("memory >= 24GiB kind=gpu-consumer vendor=nvidia") == chips("memory>=24GB kind=gpu-consumer vendor=nvidia")
    assert chips("h100-sxm") == {"h100-80gb-sxm"}
    assert chips("vendor=google,aws year>=2025") == {"tpu-v7", "trainium3"}
    assert chips("kind!=cpu bf16>2P tdp<=1000W") == {"b200-180gb-sxm"}
    assert chips("") == set(CATALOG.chips)
    assert "graviton4" not in chips("memory>0.1GB")  # unknown never matches


def test_offer_filters():
    wanted = parse_filter("h100-sxm terms=spot provider=aws price<30 count=8", offers=True)
    results = [o for o in CATALOG.offers if wanted.matches(CATALOG.chips[o.chip_id], o)]
    assert [o.instance for o in results] == ["p5.48xlarge"]
    small = parse_filter("chip=l4 memory<4GB", offers=True)  # a slice has its share of the memory
    assert {o.count for o in CATALOG.offers if small.matches(CATALOG.chips[o.chip_id], o)} == {0.125}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("colour=red", "fields: id, vendor"),
        ("price<3", "unknown filter field"),
        ("memory>=24", "lacks a unit"),
        ("memory>=lots", "24GB or 24GiB"),
        ("kind>cpu", "no order"),
        ("fp16>many", "989TFLOPS"),
        ("year=x", "2023 or 300W"),
        (">=24GB", "cannot read the filter"),
        ("memory>=1GB>=2GB", "one comparison a term"),
        ("memory==1GB", "one comparison"),
        ("vendor=,", "names nothing"),
        ("fp16>1.2.3T", "as a rate"),
    ],
)
def test_bad_filters(text, told):
    with pytest.raises(InputError) as caught:
        parse_filter(text)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "mib", "chip_id"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80gb-sxm"),
        ("NVIDIA H100 PCIe", 81559, "h100-80gb-pcie"),
        ("NVIDIA H100 NVL", 95830, "h100-94gb-nvl"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40gb-sxm"),
        ("Tesla T4", 15360, "t4"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada"),
        ("Quadro RTX 6000", 24576, "quadro-rtx-6000"),
        ("NVIDIA L40S", 46068, "l40s"),
        ("NVIDIA A10G", 23028, "a10g"),
        ("Tesla V100-SXM2-16GB", 16160, "v100-sxm2-16gb"),
        ("Tesla V100-PCIE-32GB", 32510, "v100-pcie-32gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "rtx-pro-6000-blackwell-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887, "rtx-pro-6000-blackwell-max-q"),
        ("NVIDIA GeForce RTX 3080", 12288, None),
        ("NVIDIA GeForce RTX 4060 Ti", 8188, "rtx-4060-ti-8gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", 8188, "rtx-4060-laptop"),
        ("NVIDIA GeForce RTX 3050 Laptop GPU", 4096, None),  # not the board of that name
        ("NVIDIA GeForce RTX 5080 Laptop GPU", 16303, "rtx-5080-laptop"),
        ("NVIDIA GeForce RTX 5070 Laptop GPU", 8151, None),
        ("NVIDIA GeForce GTX 1070 with Max-Q Design", 8192, "gtx-1070-max-q"),
        ("NVIDIA GeForce GTX 1080 with Max-Q Design", 8192, None),
        ("NVIDIA GeForce RTX 4080 SUPER", 16376, "rtx-4080-super"),
        ("NVIDIA GeForce RTX 4090 D", 24564, "rtx-4090-d"),
        ("NVIDIA RTX A2000 12GB", 12282, "rtx-a2000-12gb"),
        ("NVIDIA RTX A2000 8GB Laptop GPU", 8192, "rtx-a2000-laptop-8gb"),
        ("NVIDIA RTX 4000 SFF Ada Generation", 20475, "rtx-4000-sff-ada"),
        ("NVIDIA RTX 5880 Ada Generation", 49140, "rtx-5880-ada"),
        ("NVIDIA GB10", 124546, "gb10"),
        ("Some Card", 8192, None),
    ],
)
def test_names_of_nvidia_smi(name, mib, chip_id):
    result = match_gpu(Gpu(name, mib * 2**20), CATALOG.chips)
    assert (result and result.id) == chip_id


@pytest.mark.parametrize(
    ("name", "vendor", "gib", "chip_id"),
    [
        ("AMD Instinct MI300X", "AMD", 191.98, "mi300x"),
        ("AMD Radeon RX 7900 XTX", "AMD", 23.98, "rx-7900-xtx"),
        ("AMD Instinct MI250X", "AMD", 63.98, "mi250x"),  # one of its two dies
        ("Intel(R) Data Center GPU Max 1550", "Intel", 64, "intel-max-1550"),  # one of its two stacks
        ("Intel(R) Data Center GPU Max 1550", "Intel", 128, "here-gpu"),  # both, ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE
        ("Tesla K80", "NVIDIA", 11.17, "k80-die"),
        ("NVIDIA A16", "NVIDIA", 14.9, "a16-gpu"),
        ("Apple M2 Max", "Apple", 32, "apple-m2-max"),
        ("Apple M2 Pro", "Apple", 16, "apple-m2-pro"),  # not Apple M2
        ("Apple M9 Pro", "Apple", 16, None),
        ("AMD Radeon RX 7900 XT", "AMD", 19.98, "rx-7900-xt"),
        ("AMD Radeon RX 6800", "AMD", 15.98, "rx-6800"),
        ("AMD Radeon RX 6800 XT", "AMD", 15.98, "rx-6800-xt"),
        ("Radeon 8060S Graphics", "AMD", 96, "radeon-8060s"),  # memory is the machine's
        ("Intel(R) Arc(TM) A770 Graphics", "Intel", 15.5, "arc-a770-16gb"),
        ("Intel(R) Arc(TM) 140V GPU (16GB)", "Intel", 16, "arc-140v"),
        ("NVIDIA L4", "AMD", 23, None),
    ],
)
def test_names_of_other_drivers(name, vendor, gib, chip_id):
    result = match_gpu(Gpu(name, int(gib * 2**30), vendor), CATALOG.chips)
    assert (result and result.id) == chip_id


@pytest.mark.parametrize(("multiprocessors", "chip_id"), [(110, "mi250x"), (104, "mi250")])
def test_one_name_of_two_chips_is_told_apart_by_its_multiprocessors(multiprocessors, chip_id):
    gpu = Gpu("AMD Instinct MI250X / MI250", int(63.98 * 2**30), "AMD", multiprocessors=multiprocessors)
    assert match_gpu(gpu, CATALOG.chips).id == chip_id


def test_a_package_that_the_driver_shows_as_one_device_is_the_sum_of_its_devices():
    stack = CATALOG.chips["intel-max-1550"]
    both = match_gpu(Gpu("Intel(R) Data Center GPU Max 1550", 128 * 2**30, "Intel"), CATALOG.chips)
    assert (both.memory_bytes, both.devices_per_package, both.package) == (128 * 2**30, 1, "")
    assert (both.tdp_w, both.peak_flops_per_s["bf16"]) == (600, 839e12)
    assert both.link_bandwidth_bytes_per_s == stack.link_bandwidth_bytes_per_s  # the card's already
    assert str(both.source_of("tdp_w")).startswith(f"{stack.source.text}, times 2")


def test_a_device_that_is_a_part_of_what_is_sold_says_so():
    (half,) = parse_device("mi250x:8").assumed
    assert half.text == "mi250x is half of one MI250X module: PyTorch sees each as 2 devices"
    assert parse_device("trainium2:4").assumed[0].text.startswith("trainium2 is a quarter of one Trainium2 chip")
    assert parse_device("mi300x").assumed == ()


# sitar-lab/NeuSight, scripts/asplos/summary/summary.csv: PyTorch 2.1 on "AMD Instinct MI250", which is one of its two dies.
@pytest.mark.parametrize(("micro_batch", "measured_s"), [(16, 0.237094), (8, 0.121188)])
def test_a_step_measured_on_an_mi250_is_that_of_one_die(micro_batch: int, measured_s: float):
    """Of the very model, BERT large that classifies with unfused attention; the whole module would take half the time."""
    pytest.importorskip("transformers")
    from benchmarks.support.published_jobs import job_of

    job = job_of("hf-bert_large-classify", {"seq_len": 512})
    result = gpuwise.forecast(job, on="mi250", precision="fp32", mode="infer", micro_batch=micro_batch)
    assert result.step_time_s.value == pytest.approx(measured_s, rel=0.05)
    assert result.memory.capacity_bytes < 64 * 2**30


def test_what_fits_a_module_does_not_fit_its_die():
    fits = {on: gpuwise.forecast("llama2-7b", on=on, micro_batch=1).memory.fits for on in ("mi250x", "mi300x")}
    assert fits == {"mi250x": False, "mi300x": True}  # over 100 GiB of states


def test_machine_with_gpus(monkeypatch):
    monkeypatch.setattr(machine_module, "detect_gpus", lambda: (Gpu("NVIDIA L4", 23034 * 2**20),) * 2)
    machine = detect_machine(CATALOG)
    assert (machine.chip.id, machine.count, machine.link.id) == ("l4", 2, "pcie4x16")
    assert "2 × NVIDIA L4" in machine.name
    spec = parse_device("here", catalog=CATALOG)
    assert (spec.chip.id, spec.cluster.devices) == ("l4", 2)
    assert "here" in spec.assumed[0].text


def test_unknown_gpu_has_unknown_rates(monkeypatch):
    monkeypatch.setattr(machine_module, "detect_gpus", lambda: (Gpu("NVIDIA Z9", 10 * 2**30),))
    chip = detect_machine(CATALOG).chip
    assert (chip.name, chip.peak_flops_per_s, chip.memory_bandwidth_bytes_per_s) == ("NVIDIA Z9", {}, None)


def test_this_machine_without_gpus(monkeypatch):
    monkeypatch.setattr(machine_module, "detect_gpus", lambda: ())
    machine, cpu = detect_machine(CATALOG), detect_cpu()
    assert machine.chip.kind == "cpu"
    assert machine.host_cores == cpu.cores >= 1
    assert machine.chip.peak_flops_per_s["fp32"] > 1e9
    assert machine.chip.memory_bytes is None


def test_local_cpu_that_is_in_the_catalog_is_scaled_to_its_cores():
    cpu = Cpu("Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz", "Intel", 10, 20, 3e9, ("avx2", "avx512"))
    chip, whole = local_cpu_chip(cpu, CATALOG), CATALOG.chips["xeon-8380"]
    assert chip.peak_flops_per_s["fp32"] == pytest.approx(whole.peak_flops_per_s["fp32"] / 4)
    assert not chip.source_of("fp32").verified
    full = Cpu(cpu.name, "Intel", 40, 80, 3e9, ("avx2", "avx512"))
    assert local_cpu_chip(full, CATALOG) is whole


@pytest.mark.parametrize(
    ("name", "vendor", "chip_id"),
    [
        ("AMD Ryzen 9 5950X 16-Core Processor", "AMD", "ryzen-5950x"),
        ("AMD Ryzen 7 5800X3D 8-Core Processor", "AMD", "ryzen-5800x3d"),
        ("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", "AMD", "ryzen-ai-9-hx-370"),
        ("AMD Ryzen Threadripper PRO 3955WX 16-Cores", "AMD", "threadripper-pro-3955wx"),
        ("Intel(R) Xeon(R) CPU E5-2697 v2 @ 2.70GHz", "Intel", "xeon-e5-2697-v2"),
        ("Intel(R) Xeon(R) CPU E5-2697 v3 @ 2.60GHz", "Intel", None),
        ("Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", "Intel", "i7-8700k"),
        ("11th Gen Intel(R) Core(TM) i5-1135G7 @ 2.40GHz", "Intel", "i5-1135g7"),
        ("Intel(R) Core(TM) Ultra 9 185H", "Intel", "core-ultra-9-185h"),
    ],
)
def test_names_of_processors(name, vendor, chip_id):
    result = match.match_cpu(Cpu(name, vendor, 8, 16), CATALOG.chips)
    assert (result and result.id) == chip_id


def test_a_gpu_in_a_processor_has_this_machines_memory():
    chip = match.chip_of_gpu(Gpu("Radeon 8060S Graphics", 64 * 2**30, "AMD", multiprocessors=20), CATALOG.chips)
    assert (chip.memory_bytes, chip.name) == (64 * 2**30, "Radeon 8060S Graphics")
    assert chip.peak_flops_per_s == CATALOG.chips["radeon-8060s"].peak_flops_per_s
    assert match.chip_of_gpu(Gpu("NVIDIA GB10", 124546 * 2**20), CATALOG.chips).id == "gb10"


@pytest.mark.parametrize(("cores", "base"), [(30, "apple-m3-max-30-core"), (40, "apple-m3-max"), (20, "apple-m3-max")])
def test_a_macs_gpu_is_the_one_with_its_cores(cores, base):
    chip = match.chip_of_gpu(Gpu("Apple M3 Max", 48 * 2**30, "Apple", multiprocessors=cores), CATALOG.chips)
    assert (chip.sm_count, chip.memory_bytes) == (cores, 48 * 2**30)
    assert chip.memory_bandwidth_bytes_per_s == CATALOG.chips[base].memory_bandwidth_bytes_per_s
    assert chip.peak_flops_per_s["fp32"] == pytest.approx(14.2e12 * cores / 40, rel=0.01)


def test_estimate_of_an_unknown_cpu_says_how_it_was_made():
    chip = local_cpu_chip(Cpu("Odd CPU", "Odd", 4, 4, 2e9, ("avx2",)), CATALOG)
    assert chip.peak_flops_per_s["fp32"] == 4 * 2e9 * 32
    assert "4 cores × 2.00 GHz × 32 FLOP" in chip.source_of("fp32").text
    assert not chip.source_of("fp32").verified


def test_cpu_means_the_nearest_catalog_cpu(monkeypatch):
    monkeypatch.setattr(match, "detect_cpu", lambda: Cpu("Odd", "Intel", 40, 80, 2.3e9, ("avx2", "avx512")))
    assert parse_device("cpu", catalog=CATALOG).chip.id == "xeon-8380"


@pytest.mark.parametrize(("family", "flag", "flop"), [("26", "avx512", 64), ("25", "avx512-halved", 32)])
def test_amd_before_zen_5_halves_512_bit_instructions(family, flag, flop):
    info = f"vendor_id\t: AuthenticAMD\ncpu family\t: {family}\nflags\t\t: fpu avx2 avx512f\n"
    flags = vector_units(info)
    assert flags == ("avx2", flag)
    assert match._flop_per_clock(flags) == flop
