"""Forecasts of small traces built by hand: sums, bounds, units, refusals."""

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.cost.calibration import PROVENANCE, Calibration, CalibrationEntry, CalibrationFile, Term, shipped, step_spread
from gpuwise.cost.clock import sustained_tensor_share
from gpuwise.cost.host import host_factor
from gpuwise.cost.inputs import DataPipeline
from gpuwise.cost.interval import Launches, level_shares, step_interval
from gpuwise.cost.kernels import classes, kernel_times
from gpuwise.cost.parameters import parameters
from gpuwise.cost.price import price
from gpuwise.cost.rates import family, precisions_of, units_for
from gpuwise.cost.single_kernel import kernel_forecast
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip, Link, Source
from gpuwise.plan.space.legal import precisions_for
from gpuwise.strategy import PRECISIONS, Mesh, Strategy
from gpuwise.trace.header import Header, RankGroup
from gpuwise.trace.parallel.communication import Collective, Communication
from gpuwise.trace.tables import BEFORE, CATEGORIES, COLUMNS, KINDS, PHASES, Operations, OperationSequence, Storages
from gpuwise.trace.trace import Trace

CATALOG = Catalog()
H100, A100, T4, V100 = (CATALOG.chip(i) for i in ("h100-80gb-sxm", "a100-80gb-sxm", "t4", "v100-pcie-32gb"))
FAST = Link("fast", "fast link", "scale-up", per_direction_bytes_per_s=300e9, allreduce_busbw_bytes_per_s=200e9)


def traffic(devices, *, calls=1, overlaps="last backward", **payloads):
    """Collectives over all devices; payloads: bytes by operation."""
    group = RankGroup("dp_replicate", devices, 1)
    return Communication().and_also(*(Collective(name, group, size, calls, overlaps) for name, size in payloads.items()))


ALONE = Communication()


def operation(kind, dtype="bfloat16", **numbers):
    return kind, dtype, [numbers.get(name, 1 if name == "kernels" else 0) for name in COLUMNS]


def gemm(m, n, k, dtype="bfloat16", size=2):
    moved = size * (m * k + n * k)
    return operation("gemm", dtype, flops=2 * m * n * k, bytes_read=moved, bytes_written=size * m * n, batch=1, m=m, n=n, k=k)


def make_trace(rows, *, precision="amp-bf16", mode="train", accumulation=1, repeat=1, samples=4, storages=(), unit="token"):
    """rows: (operation, phase, module name); the step runs them `repeat` times, as first micro-batch and as second."""
    modules = tuple(dict.fromkeys(module for _, _, module in rows))
    ops = [row[0] for row in rows]
    operations = Operations(
        name=tuple(f"aten::{kind}{'_backward' if phase == 'backward' else ''}" for (kind, _, _), phase, _ in rows),
        kind=np.array([KINDS.index(kind) for kind, _, _ in ops]),
        dtype=tuple(dtype for _, dtype, _ in ops),
        values=np.array([values for _, _, values in ops], dtype=np.int64),
    )
    positions, micro = [], []
    for step in (0, 1):
        for _ in range(repeat):
            chosen = [i for i, (_, phase, _) in enumerate(rows) if phase != "optimizer"]
            positions += chosen
            micro += [step] * len(chosen)
    last = [i for i, (_, phase, _) in enumerate(rows) if phase == "optimizer"]
    positions, micro = np.array(positions + last), np.array(micro + [2] * len(last))
    phase = np.array([PHASES.index(rows[i][1]) for i in positions])
    module = np.array([modules.index(rows[i][2]) for i in positions])
    columns = np.array(storages, dtype=np.int64).reshape(-1, 4)
    header = Header(
        job="hand",
        fingerprint="",
        sizes={"micro_batch": samples, "seq_len": 128},
        strategy=Strategy(precision=precision, mode=mode, micro_batch=samples, accumulation=accumulation),
        parameters=1000,
        trainable_parameters=1000,
        sample_unit=unit,
        units_per_sample=128 if unit == "token" else 1,
    )
    storage = Storages(columns[:, 0], columns[:, 1], np.zeros(len(columns), dtype=np.int64), columns[:, 2], columns[:, 3])
    return Trace(header, operations, OperationSequence(positions, module, phase, micro), storage, modules).check()


def training(*, side=4096, **options):
    """A step of two products. side: of their matrices; those of 4,096 take about as long as their host."""
    rows = [
        (gemm(side, side, side), "forward", "layers.0.mlp"),
        (gemm(side, side, side), "backward", "layers.1.mlp"),
        (operation("elementwise", bytes_read=10**8, bytes_written=10**8), "forward", "layers.0.act"),
        (operation("optimizer", "float32", bytes_read=10**9, bytes_written=10**9), "optimizer", ""),
    ]
    return make_trace(rows, **options)


def forecast(trace, chip=H100, communication=ALONE, **options):
    shape = {
        name: options.pop(name)
        for name in ("devices_per_machine", "machines", "inside", "between", "memory_bytes")
        if name in options
    }
    strategy = options.pop("strategy", trace.header.strategy)
    return price(trace, communication, Cluster(chip, **shape), strategy=strategy, **options)


def test_a_step_of_one_large_kernel_takes_as_long_as_the_kernel_or_longer_where_power_is_short():
    product = make_trace([(gemm(16384, 16384, 16384), "forward", "m")])
    copied = make_trace([(operation("elementwise", bytes_read=10**10, bytes_written=10**10), "forward", "m")])
    for chip, clock in ((CATALOG.chip("rtx-3090"), 1.0), (H100, sustained_tensor_share(H100, parameters()))):
        alone = kernel_forecast("gemm", chip, dtype="bf16", sizes={"m": 16384, "n": 16384, "k": 16384}).time_s.value
        assert alone <= forecast(product, chip=chip).step_time_s.value <= alone / clock * (1 + 1e-9)
        moved = kernel_forecast("elementwise", chip, dtype="bf16", sizes={"bytes_read": 10**10, "bytes_written": 10**10})
        assert forecast(copied, chip=chip).step_time_s.value == pytest.approx(moved.time_s.value)


def test_large_kernels_reach_most_of_the_datasheet_and_no_more_than_was_ever_measured():
    """The best bf16 product known of an H100 SXM reaches 80 % of the sheet (stas00/ml-engineering)."""
    trace = make_trace([(gemm(16384, 16384, 16384), "forward", "m")])
    share = trace.flops() / H100.peak_flops_per_s["bf16"] / forecast(trace).step_time_s.value
    assert 0.5 < share < 0.83
    trace = make_trace([(operation("elementwise", bytes_read=10**10, bytes_written=10**10), "forward", "m")])
    assert 0.6 < 2e10 / H100.memory_bandwidth_bytes_per_s / forecast(trace).step_time_s.value < 1


def test_small_kernels_are_launch_bound():
    trace = make_trace([(operation("elementwise", bytes_read=64, bytes_written=64), "forward", "m")], repeat=1000)
    result = forecast(trace)
    assert result.bound["launch"] > 0.99
    launched_s = 1000 * (parameters().host_operation_s["forward"] + parameters().host_kernel_s)
    assert result.step_time_s.value == pytest.approx(host_factor(H100, parameters()) * launched_s)


def test_a_launch_bound_step_is_as_sure_as_its_host():
    trace = make_trace([(operation("elementwise", bytes_read=64, bytes_written=64), "forward", "m")], repeat=1000)
    step, (low, high) = forecast(trace).step_time_s, parameters().host_spread
    assert (step.low, step.high) == pytest.approx((low * step.value, high * step.value))


def test_a_host_nearly_as_long_as_the_kernels_reaches_beyond_their_interval_above_but_not_below():
    kernels = {"chip": 1.0}
    alone = step_interval(1.0, kernels, H100, Strategy(), communication=0.0)
    spread = parameters().host_spread
    beside = [
        step_interval(
            1.0,
            kernels,
            H100,
            Strategy(),
            communication=0.0,
            launches=Launches.of(kernels_s=2.0, host_s=2.0 * share, parameters=parameters()),
        )
        for share in (0.1, 0.95)
    ]
    assert beside[0] == alone
    assert beside[1].low == alone.low
    assert beside[1].high == pytest.approx(0.95 * spread[1])
    assert beside[1].high > alone.high


def test_bounds_sum_to_one_and_name_what_limits():
    assert sum(forecast(training()).bound.values()) == pytest.approx(1)
    assert forecast(make_trace([(gemm(8192, 8192, 8192), "forward", "m")])).bound["compute"] > 0.9
    moved = operation("copy", bytes_read=10**9, bytes_written=10**9)
    assert forecast(make_trace([(moved, "forward", "m")])).bound["memory"] > 0.9


def test_throughput_counts_units_over_all_devices():
    result = forecast(training(samples=4), communication=ALONE, devices_per_machine=8, inside=FAST)
    assert result.count == 8
    assert result.throughput == pytest.approx(4 * 128 * 8 / result.step_time_s.value)
    assert result.throughput_unit == "tokens/s"
    assert forecast(training(unit="image")).throughput_unit == "images/s"
    assert forecast(training(unit="sample")).throughput_unit == "samples/s"


def test_accumulation_repeats_the_micro_batch_and_not_the_optimizer():
    one, four = (forecast(training(side=8192, accumulation=a)).step_time_s.value for a in (1, 4))
    only_optimizer = forecast(make_trace([(operation("optimizer", bytes_read=10**9, bytes_written=10**9), "optimizer", "")]))
    assert four == pytest.approx(4 * one - 3 * only_optimizer.step_time_s.value, rel=0.01)


def test_mfu_is_model_operations_against_the_peak():
    trace = make_trace([(gemm(8192, 8192, 8192), "forward", "m"), (gemm(8192, 8192, 8192), "recompute", "m")])
    result = forecast(trace)
    assert result.mfu == pytest.approx(2 * 8192**3 / H100.peak_flops_per_s["bf16"] / result.step_time_s.value)
    assert result.flops_per_step == 2 * 8192**3


def test_energy_is_below_the_tdp_and_unknown_without_one():
    result = forecast(training(side=2048))
    assert 0.2 * H100.tdp_w < result.energy_j / result.step_time_s.value < H100.tdp_w
    most = forecast(training())  # power is short
    assert most.energy_j / most.step_time_s.value == pytest.approx(H100.tdp_w)
    assert forecast(training(), chip=replace(H100, tdp_w=None)).energy_j is None


def test_top_modules_join_the_layers_of_a_stack():
    names = [name for name, _ in forecast(training()).top_modules]
    assert "layers.*.mlp" in names
    assert sum(share for _, share in forecast(training()).top_modules) == pytest.approx(1)


def test_convolutions_take_tf32_on_ampere_and_products_do_not():
    def step(kind, chip, precision="fp32"):
        row = operation(kind, "float32", flops=2 * 4096**3, batch=1, m=4096, n=4096, k=4096)
        return forecast(make_trace([(row, "forward", "m")], precision=precision), chip=chip).step_time_s.value

    assert step("conv", A100) < step("gemm", A100) / 3
    assert step("gemm", A100, "tf32") < step("gemm", A100) / 3
    with pytest.raises(UnsupportedError, match="does not compute in tf32"):
        step("gemm", V100, "tf32")


def test_a_power_limited_card_sustains_less_of_its_peak():
    rich = replace(T4, tdp_w=250)
    trace = make_trace([(gemm(4096, 4096, 4096, "float16"), "forward", "m")], precision="amp-fp16")
    assert forecast(trace, chip=T4).step_time_s.value > 1.5 * forecast(trace, chip=rich).step_time_s.value


def test_bf16_on_turing_is_refused_and_fp16_named():
    with pytest.raises(UnsupportedError, match="t4 does not compute in amp-bf16") as caught:
        forecast(training(), chip=T4)
    assert caught.value.ways_out[0] == "--precision amp-fp16"


def test_fp16_on_pascal_is_priced_as_fp32_and_says_so():
    card = CATALOG.chip("gtx-1080-ti")
    trace = make_trace([(gemm(4096, 4096, 4096, "float16"), "forward", "m")], precision="amp-fp16")
    result = forecast(trace, chip=card)
    assert any("fp32 rate" in note for note in result.assumptions)
    assert result.mfu < 1


@pytest.mark.parametrize("name", ["intel-loihi2", "alveo-u250", "ibm-truenorth"])
def test_a_chip_without_figures_is_refused_by_the_figure(name):
    with pytest.raises(UnsupportedError, match=f"{name} cannot train") as caught:
        forecast(training(), chip=CATALOG.chip(name))
    assert not any("--mode infer" in way for way in caught.value.ways_out)  # it would be refused next
    with pytest.raises(UnsupportedError, match=f"{name} has no known floating-point peak"):
        forecast(training(mode="infer"), chip=CATALOG.chip(name))


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_chip_too_old_for_pytorch_is_refused(mode):
    with pytest.raises(UnsupportedError, match=r"k80-die is too old for PyTorch: .* 3\.7"):
        forecast(training(mode=mode), chip=CATALOG.chip("k80-die"))


def test_an_inference_chip_infers_but_does_not_train():
    chip = CATALOG.chip("inferentia1")
    with pytest.raises(UnsupportedError, match="cannot train"):
        forecast(training(), chip=chip)
    assert forecast(make_trace([(gemm(1024, 1024, 1024), "forward", "m")], mode="infer"), chip=chip).step_time_s.value > 0


def test_an_unknown_bandwidth_is_refused():
    with pytest.raises(UnsupportedError, match="memory bandwidth"):
        forecast(training(), chip=replace(H100, memory_bandwidth_bytes_per_s=None))


def prices(trace, chip):
    """A forecast, or None where it is refused with the chip's name."""
    try:
        return forecast(trace, chip=chip)
    except UnsupportedError as error:
        return None if chip.id in error.what else pytest.fail(error.what)


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "fp32"), ("bfloat16", "amp-bf16"), ("float16", "amp-fp16")])
def test_every_chip_of_the_catalog_is_priced_or_refused(dtype, precision):
    """No chip gives a number that is not finite and positive, whatever figures it lacks."""
    trace = make_trace([(gemm(1024, 1024, 1024, dtype), "forward", "m")], precision=precision)
    results = [result for chip in CATALOG.chips.values() if (result := prices(trace, chip))]
    assert len(results) > 60
    for result in results:
        assert 0 < result.step_time_s.low < result.step_time_s.value < result.step_time_s.high < 60
        geforce = result.device.startswith(("rtx-", "gtx-"))  # they boost beyond the clock of their sheet
        assert 0 < result.mfu < (1.15 if geforce else 1)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precisions_of_a_chip_are_those_it_has_units_for(precision):
    """One answer to two questions, for every chip: may it be asked, and are there units that run it."""
    dtypes = {
        "amp-bf16": "bfloat16",
        "bf16": "bfloat16",
        "amp-fp16": "float16",
        "fp16": "float16",
        "fp8": "float8_e4m3fn",
    }
    dtype = dtypes.get(precision, "float32")
    for chip in CATALOG.chips.values():
        try:
            units = units_for(chip, dtype=dtype, kind="gemm", precision=precision, parameters=parameters())
        except UnsupportedError:
            assert precision not in precisions_of(chip), chip.id
            continue
        if precision != "tf32":  # without tf32 units there are still those of fp32, under another name
            assert precision in precisions_of(chip), chip.id
        elif precision in precisions_of(chip) and family(chip) == "gpu":
            assert units.figure == "tf32", chip.id


@pytest.mark.parametrize("name", ["rtx-2080-ti", "gtx-1080-ti", "tpu-v5e", "xeon-8380", "mi300x"])
def test_tf32_is_refused_where_no_unit_runs_it_and_fp32_named(name):
    trace = make_trace([(gemm(1024, 1024, 1024, "float32"), "forward", "m")], precision="tf32")
    with pytest.raises(UnsupportedError, match=f"{name} does not compute in tf32") as caught:
        forecast(trace, chip=CATALOG.chip(name))
    assert caught.value.ways_out == ("--precision fp32",)


@pytest.mark.parametrize("name", ["tpu-v5e", "gaudi2"])
def test_fp32_in_passes_of_bf16_is_priced_and_planned_alike(name):
    chip = CATALOG.chip(name)
    trace = make_trace([(gemm(1024, 1024, 1024, "float32"), "forward", "m")], precision="fp32")
    assert any("3 bf16 passes" in text for text in forecast(trace, chip=chip).assumptions)
    assert precisions_for(chip, "fp32") == ["fp32"]


def test_unverified_figures_that_were_used_are_named_in_one_line():
    def named(chip, **options):
        result = forecast(
            training(**options), chip=chip, communication=traffic(2, all_reduce=10**6), devices_per_machine=2, inside=FAST
        ).assumptions
        (line,) = [text for text in result if text.startswith("unverified")]
        return line.split(": ")[1].split(", ")

    doubtful = replace(H100, sources={name: Source("memory", "2026", verified=False) for name in ("tdp_w", "bf16", "fp16")})
    assert named(doubtful) == ["bf16", "tdp_w", "allreduce_busbw_bytes_per_s of fast link"]
    alone = forecast(training(), chip=H100).assumptions
    assert not any(text.startswith("unverified") for text in alone)


def test_the_ring_formula_prices_an_all_reduce():
    trace = make_trace([(gemm(64, 64, 64), "forward", "m")])
    alone = forecast(trace).step_time_s.value
    eight = forecast(trace, communication=traffic(8, all_reduce=10**10), devices_per_machine=8, inside=FAST)
    added = eight.step_time_s.value - alone
    assert added == pytest.approx(2 * 7 / 8 * 1e10 / 200e9, rel=2e-3)
    assert eight.bound["communication"] > 0.9


def test_the_backward_pass_hides_an_exchange():
    hidden = forecast(training(), communication=traffic(8, all_reduce=10**6), devices_per_machine=8, inside=FAST)
    assert hidden.bound["communication"] < 0.05


def test_accumulation_hides_gathers_behind_every_micro_batch_and_the_all_reduce_behind_the_last():
    gathers = traffic(8, all_gather=4 * 10**8, calls=4, overlaps="step")
    reduces = traffic(8, all_reduce=2 * 10**8)
    ten = {"devices_per_machine": 8, "inside": replace(FAST, allreduce_busbw_bytes_per_s=100e9)}
    trace = training(accumulation=16)
    hidden = forecast(trace, communication=gathers, **ten).bound["communication"]
    exposed = forecast(trace, communication=reduces, **ten).bound["communication"]
    assert hidden < exposed


def test_the_network_bounds_machines_by_their_whole_line_rate():
    network = Link("net", "network", "scale-out", per_direction_bytes_per_s=50e9, allreduce_busbw_bytes_per_s=40e9)
    trace = make_trace([(gemm(64, 64, 64), "forward", "m")])
    work = traffic(16, all_gather=10**10)
    result = forecast(trace, communication=work, devices_per_machine=8, machines=2, inside=FAST, between=network)
    assert result.count == 16
    assert result.step_time_s.value == pytest.approx(15 / 16 * 1e10 / 40e9, rel=0.01)


def test_an_exchange_over_an_unknown_link_is_refused():
    with pytest.raises(UnsupportedError, match="inside the machine"):
        forecast(training(), communication=traffic(2, all_reduce=10**9), devices_per_machine=2)


def test_devices_below_one_are_refused():
    with pytest.raises(InputError):
        forecast(training(), devices_per_machine=0)


def test_price_and_mesh_are_reported():
    strategy = Strategy(precision="amp-bf16", micro_batch=4, mesh=Mesh(dp_shard=2))
    result = forecast(training(), devices_per_machine=2, strategy=strategy, usd_per_hour=3.5)
    assert result.usd_per_hour == 3.5
    assert result.strategy is strategy
    assert result.provenance["step_time_s"] in PROVENANCE.values()
    assert result.to_dict()["step_time_s"]["value"] == result.step_time_s.value


def one_level(level, entries, scale=None):
    """The shipped figures of a GPU under those of another level."""
    shipped_family = next(file for (name, of), file in shipped().items() if (name, of) == ("family", "gpu"))
    return Calibration((CalibrationFile("made", level, "h100", entries, scale or {}), shipped_family))


def test_provenance_is_that_of_most_of_the_time_and_rests_on_has_the_rest():
    mine = CalibrationEntry({"compute": Term(1.2), "memory": Term(1.2)}, spread=(0.9, 1.1))
    measured = forecast(
        training(), calibration=one_level("machine", {"gemm.bf16": mine, "elementwise": mine, "optimizer": mine})
    )
    assert measured.provenance["step_time_s"] == "measured here"
    assert measured.rests_on == {"measured here": pytest.approx(1)}
    mixed = forecast(training(), calibration=one_level("chip", {"gemm.bf16": mine}))
    assert set(mixed.rests_on) == {"calibrated on this chip", "datasheet only"}
    assert sum(mixed.rests_on.values()) == pytest.approx(1)
    assert mixed.provenance["step_time_s"] == max(mixed.rests_on, key=mixed.rests_on.get)
    assert mixed.provenance["memory"] == "trace"
    assert forecast(training(), calibration=one_level("family", {})).provenance["step_time_s"] == "datasheet only"


def test_the_interval_is_that_of_the_levels_a_step_rests_on():
    def ratios(level):
        entries = {
            name: CalibrationEntry({"compute": Term(1.3), "memory": Term(1.3)})
            for name in ("gemm.bf16", "elementwise", "optimizer")
        }
        time = forecast(training(side=8192), calibration=one_level(level, entries)).step_time_s
        return time.low / time.value, time.high / time.value

    known = step_spread("chip", family="gpu", mode="train")
    assert ratios("chip") == (pytest.approx(known.low), pytest.approx(known.high))
    assert ratios("family")[0] < ratios("architecture")[0] <= ratios("chip")[0]
    assert ratios("family")[1] > ratios("architecture")[1] >= ratios("chip")[1]


def test_an_exchange_widens_the_interval():
    """Its time rests on datasheets, whatever is known of the kernels."""
    figures = one_level("machine", {"gemm.bf16": CalibrationEntry({"compute": Term(1.3), "memory": Term(1.3)})})
    trace = make_trace([(gemm(4096, 4096, 4096), "forward", "m")])
    alone = forecast(trace, calibration=figures).step_time_s
    work = traffic(8, all_reduce=10**10)
    eight = forecast(trace, communication=work, devices_per_machine=8, inside=FAST, calibration=figures).step_time_s
    assert eight.high / eight.value > alone.high / alone.value


@pytest.mark.parametrize("device", ["h100-80gb-sxm", "xeon-8380"])
def test_compile_warns_as_long_as_no_compiled_step_gave_a_spread(device):
    chip = CATALOG.chip(device)
    trace = make_trace([(gemm(512, 512, 512, "float32", 4), "forward", "m")], precision="fp32")
    strategy = Strategy(precision="fp32", micro_batch=4, compile=True)
    levels = level_shares(trace, kernel_times(trace, chip, parameters()))
    known = step_spread(max(levels, key=levels.get), family=family(chip), mode="train", compiled=True).compiled
    assert any("torch.compile" in w for w in forecast(trace, chip=chip, strategy=strategy).warnings) is not known
    assert not any("torch.compile" in w for w in forecast(trace, chip=chip).warnings)


def test_kernels_without_a_model_are_counted_and_named_from_two_per_cent_on():
    def warned(size_bytes):
        strange = operation("other", bytes_read=size_bytes, bytes_written=size_bytes)
        return forecast(make_trace([(gemm(4096, 4096, 4096), "forward", "m"), (strange, "forward", "m")], repeat=3)).warnings

    (line,) = warned(10**9)
    assert "3 calls of kernels without a model" in line
    assert line.endswith("other")
    assert not warned(1000)


def test_decompositions_of_matrices_are_named_however_short_they_are_priced():
    strange = operation("other", bytes_read=1000, bytes_written=1000)
    both = make_trace([(gemm(4096, 4096, 4096), "forward", "m"), (strange, "forward", "m")], repeat=3)
    named = replace(both, operations=replace(both.operations, name=("aten.mm.default", "aten._linalg_eigh.default")))
    assert not forecast(both).warnings
    other = replace(both, operations=replace(both.operations, name=("aten.mm.default", "aten._weight_norm_interface.default")))
    assert not forecast(other).warnings
    (line,) = forecast(named).warnings
    assert line.startswith("3 decompositions of matrices (linalg_eigh) are priced by their bytes alone")


def test_a_slow_data_pipeline_bounds_the_step():
    ready = forecast(training())
    assert ready.bound["input"] == 0
    assert any("--loader-samples-per-s" in note for note in ready.assumptions)
    slow = forecast(training(), data=DataPipeline(4 / (2 * ready.step_time_s.value)))
    assert slow.step_time_s.value == pytest.approx(2 * ready.step_time_s.value)
    assert slow.bound["input"] == pytest.approx(0.5)
    assert sum(slow.bound.values()) == pytest.approx(1)
    fast = forecast(training(), data=DataPipeline(1e9))
    assert fast.step_time_s == ready.step_time_s
    with pytest.raises(InputError, match="loader"):
        forecast(training(), data=DataPipeline(0))


def test_why_names_what_bounds_most_and_a_way_out():
    product = make_trace([(gemm(8192, 8192, 8192, "float32", 4), "forward", "net.mlp")], precision="fp32")
    text = forecast(product).why
    assert text.startswith("arithmetic bounds")
    assert "net.mlp" in text
    assert "--precision amp-bf16" in text
    moved = make_trace([(operation("copy", bytes_read=10**9, bytes_written=10**9), "forward", "m")])
    assert forecast(moved).why.startswith("memory bandwidth bounds")
    small = make_trace([(operation("elementwise", bytes_read=64, bytes_written=64), "forward", "m")], repeat=1000)
    assert "--micro-batch" in forecast(small).why
    shared = forecast(
        make_trace([(gemm(64, 64, 64), "forward", "m")]),
        communication=traffic(8, all_reduce=10**10),
        devices_per_machine=8,
        inside=FAST,
    )
    assert shared.why.startswith("communication bounds")
    waits = forecast(training(), data=DataPipeline(1))
    assert "data pipeline" in waits.why
    assert waits.to_dict()["why"] == waits.why


def kept(size, category, born, died):
    return size, CATEGORIES.index(category), born, died


def test_memory_adds_the_workspaces_by_name_and_sums_exactly():
    stored = [kept(10**9, "parameter", BEFORE, 3), kept(5000, "activation", 0, 1)]
    trace = training(storages=stored)
    memory = forecast(trace).memory
    assert sum(memory.by_category.values()) == memory.peak_allocated_bytes
    assert memory.by_category["workspace"] == 2 * 33_554_432
    assert memory.by_category["temporary"] == 0
    assert memory.by_category["activation"] == 5120
    assert memory.peak_allocated_bytes < memory.peak_reserved_bytes < memory.device_bytes
    assert memory.capacity_bytes == H100.usable_memory_bytes
    assert memory.fits


def test_older_chips_have_the_smaller_workspace_and_inference_one_of_them():
    infer = make_trace([(gemm(64, 64, 64), "forward", "m")], mode="infer")
    assert forecast(infer, chip=A100).memory.peak_allocated_bytes == 8_519_680


def test_devices_that_talk_hold_a_communicator():
    one, two = (forecast(training(), devices_per_machine=n).memory.device_bytes for n in (1, 2))
    assert two - one == parameters().communicator_bytes


def test_a_cpu_has_no_workspace_no_context_and_the_memory_of_its_machine():
    cpu = CATALOG.chip("xeon-8380")
    trace = make_trace(
        [(gemm(64, 64, 64, "float32", 4), "forward", "m")],
        precision="fp32",
        storages=[kept(10**6, "parameter", BEFORE, 1)],
    )
    memory = forecast(trace, chip=cpu, memory_bytes=10**9).memory
    assert memory.peak_allocated_bytes == memory.device_bytes == 10**6
    assert memory.capacity_bytes == 10**9
    assert forecast(trace, chip=cpu).memory.fits is None


def test_the_cost_of_pricing_does_not_grow_with_layers():
    """Distinct operations are priced once: a deeper trace prices the same number of rows."""
    shallow, deep = training(repeat=2), training(repeat=2000)
    assert len(shallow.operations) == len(deep.operations)
    assert forecast(deep).step_time_s.value > 500 * (
        forecast(shallow).step_time_s.value - forecast(training()).step_time_s.value
    )


def test_what_no_chip_changes_is_made_once_for_a_trace(monkeypatch):
    made = []

    def counted(trace, _classes=classes.classes):
        made.append(trace)
        return _classes(trace)

    monkeypatch.setattr(classes, "classes", counted)
    trace = training()
    for chip in (H100, A100, H100):
        forecast(trace, chip=chip)
    assert len(made) == 1
    forecast(replace(trace))  # another trace, though of equal columns
    assert len(made) == 2


def test_an_unused_chip_figure_is_not_needed():
    """A chip of which only fp32 rate and bandwidth are known is priced: its units and cache are assumed."""
    bare = Chip("bare", "NVIDIA", "bare", "gpu-consumer", peak_flops_per_s={"fp32": 1e13}, memory_bandwidth_bytes_per_s=5e11)
    trace = make_trace([(gemm(4096, 4096, 4096, "float32", 4), "forward", "m")], precision="fp32")
    result = forecast(trace, chip=bare)
    assert result.memory.capacity_bytes is None
    assert result.energy_j is None
