"""Engines that launch kernels one by one, by maker and host; products of few rows; rows of the tables of local engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.serving.local_rows import chip_of, host_of, runs
from tests.unit.test_api_serving import job

from gpuwise.api.devices import device_of
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.served_job import served
from gpuwise.cost.calibration import Calibration, CalibrationFile, calibration
from gpuwise.cost.kernels.shapes import Shapes
from gpuwise.cost.kernels.times import class_times
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import precisions_of
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.serving.engine_costs import EngineCosts, PlatformCosts
from gpuwise.serving.engines import engine_of
from gpuwise.serving.formats import StoredWeights, format_of, stored
from gpuwise.serving.generation import Generation
from gpuwise.serving.platforms import has_kernels, nearest_formats, runs_on
from gpuwise.serving.step_time import EngineStep
from gpuwise.tracing.generation import record_generation

COSTS = EngineCosts(
    kernel_s=1e-6,
    products_per_clock=100.0,
    platforms=(
        ("AMD", PlatformCosts(8e-6, 40.0)),
        ("NVIDIA, Windows", PlatformCosts(3e-6, 90.0)),
        ("NVIDIA, Linux, slow", PlatformCosts(1e-6, 100.0, 4e-4)),
    ),
)


def chip(name: str) -> Chip:
    return load_catalog().chip(name)


def cluster(of: Chip) -> Cluster:
    return replace(device_of(of.id, load_catalog()).cluster, chip=of)


@pytest.fixture(scope="module")
def small() -> Generation:
    return record_generation(job(), precision="fp16", longest=4096)


def test_costs_are_those_of_the_maker_and_of_the_host():
    assert COSTS.on("Intel") == COSTS
    assert (COSTS.on("AMD").kernel_s, COSTS.on("AMD").products_per_clock) == (8e-6, 40.0)
    assert COSTS.beside("Windows").on("NVIDIA").kernel_s == 3e-6
    assert COSTS.beside("Windows").on("AMD").kernel_s == 8e-6
    assert COSTS.beside("Linux") == COSTS.beside("unknown") == COSTS
    assert COSTS.beside("Linux, slow").on("NVIDIA").attention_s == 4e-4


def test_each_operation_is_a_kernel_that_waits_as_long_as_on_its_maker(small: Generation):
    costs = EngineCosts(kernel_s=1e-6, platforms=(("AMD", PlatformCosts(8e-6)),))
    operations = sum(small.kernels)
    for name, each_s in (("rtx-4090", 1e-6), ("rx-6900-xt", 8e-6)):
        fused, single = (EngineStep(small, cluster(chip(name)), costs=c)([], 1, 100) for c in (EngineCosts(), costs))
        assert single - fused == pytest.approx(each_s * operations)


def test_a_processor_has_nothing_of_its_makers_gpus():
    generation = record_generation(job(), precision="fp32", target="cpu", longest=4096)
    of = cluster(chip("ryzen-5950x"))
    plain, with_gpus = EngineCosts(cpu_share=1.0), EngineCosts(cpu_share=1.0, platforms=(("AMD", PlatformCosts(8e-6)),))
    assert EngineStep(generation, of, costs=with_gpus)([], 1, 100) == EngineStep(generation, of, costs=plain)([], 1, 100)
    own = EngineCosts(cpu_share=1.0, platforms=(("CPU", PlatformCosts(2e-6)),))
    more_s = EngineStep(generation, of, costs=own)([], 1, 100) - EngineStep(generation, of, costs=plain)([], 1, 100)
    assert more_s == pytest.approx(2e-6 * sum(generation.kernels))


def test_attention_on_the_host_adds_its_wait_for_each_layer(small: Generation):
    layers = sum(each.layers for each in small.attention)
    here, host = (EngineStep(small, cluster(chip("l40s")), costs=EngineCosts(attention_s=s)) for s in (0.0, 3e-4))
    assert host([], 1, 100) - here([], 1, 100) == pytest.approx(3e-4 * layers)
    assert host([(64, 0)], 0, 0) - here([(64, 0)], 0, 0) == pytest.approx(3e-4 * layers)


def test_a_host_that_launches_every_operation_sets_the_pace_of_a_fast_card(small: Generation):
    costs = EngineCosts(kernel_s=1e-7, launch_s=1e-3, decoding_launch_s=1e-3)  # a reference host, beside a data-centre card
    layers = sum(each.layers for each in small.attention)
    step = EngineStep(small, cluster(chip("a100-80gb-sxm")), costs=costs)
    assert step([], 1, 100) == pytest.approx(1e-3 * (sum(small.kernels) + layers))
    by_graph = EngineStep(small, cluster(chip("a100-80gb-sxm")), costs=replace(costs, decoding_launch_s=0.0))
    assert by_graph([], 1, 100) < 0.1 * step([], 1, 100)


def test_products_that_unpack_take_the_clocks_of_their_multiplications(small: Generation):
    """A made-up product of 4,096 by 4,096 by 512: 8.6e9 multiply-adds at 100 a clock of each of 108 multiprocessors."""
    weights = stored(small, format_of("gguf-q4_0"))
    of, costs = chip("a100-80gb-sxm"), EngineCosts(products_per_clock=100.0)
    expected = 512 * 4096 * 4096 / (100 * 108 * 1.41e9)
    each_s = _unpacked_s(small, of, costs, weights)
    assert each_s == pytest.approx(expected, rel=0.01)
    # Units that multiply twice as fast do not help; half of the multiprocessors take twice as long.
    fast = replace(of, peak_flops_per_s={name: 2 * rate for name, rate in of.peak_flops_per_s.items()})
    assert _unpacked_s(small, fast, costs, weights) == pytest.approx(each_s, rel=1e-6)
    assert _unpacked_s(small, replace(of, sm_count=54), costs, weights) == pytest.approx(2 * expected, rel=0.01)
    # A product that is nothing but bytes takes these.
    assert _unpacked_s(small, of, EngineCosts(products_per_clock=1e9), weights) > 4096 * 4096 * 0.5625 / 2.04e12


def _unpacked_s(generation: Generation, of: Chip, costs: EngineCosts, weights: StoredWeights) -> float:
    kernels = EngineStep(generation, cluster(of), costs=costs, weights=weights)._kernels
    assert kernels._unpacks
    times = kernels._times("gemm", "float16", _product(512))
    return float(kernels._unpacked_s("gemm", "float16", _product(512))[0] - times.floor_s[0])


def _product(rows: float, size: float = 4096.0, weight_bytes: float = 0.5625) -> Shapes:
    def one(value: float) -> np.ndarray:
        return np.array([value])

    return Shapes(
        flops=one(2 * rows * size * size),
        bytes_read=one(2 * rows * size + weight_bytes * size * size),
        bytes_written=one(2 * rows * size),
        kernels=one(1.0),
        batch=one(1.0),
        m=one(rows),
        n=one(size),
        k=one(size),
        causal=one(0.0),
        element_bytes=one(2.0),
    )


def test_a_row_is_priced_by_figures_that_know_rows():
    """An RTX 3090's own memory term was learned from whole steps of vision models; one row reads its matrix at the speed that
    tables of products with one row show."""
    of = chip("rtx-3090")
    own, few = calibration(of), calibration(of).of_few_rows()
    family = next(file for file in own.files if file.level == "family")
    assert few.find("gemm", "fp16").entry == family.entries["gemm.bf16"]  # type: ignore[union-attr]
    assert own.find("gemm", "fp16").entry != few.find("gemm", "fp16").entry  # type: ignore[union-attr]
    assert own.find("norm") == few.find("norm")
    product = _product(1, 16384.0, 2.0)
    read_s = 2 * 16384.0**2 / 936.2e9
    times = class_times("gemm", "float16", product, of, precision="fp16", parameters=parameters(), calibration=few)
    assert read_s < times.device_s[0] < 1.35 * read_s


def test_chips_with_tables_of_products_keep_their_own_figures_for_one_row():
    for name, numerics in (("h100-80gb-sxm", "bf16"), ("b200-180gb-sxm", "fp8"), ("t4", "fp32")):
        own = calibration(chip(name))
        assert own.of_few_rows().find("gemm", numerics) == own.find("gemm", numerics)


def test_where_no_file_knows_rows_one_row_has_the_figures_of_many():
    own = calibration(chip("tpu-v5e"))
    assert own.find("gemm", "bf16") is not None
    assert own.of_few_rows().find("gemm", "bf16") == own.find("gemm", "bf16")


def test_figures_measured_on_this_machine_count_for_one_row():
    shipped = calibration(chip("rtx-3090"))
    measured = CalibrationFile("here", "machine", "rtx-3090", {"gemm.fp16": shipped.files[0].entries["gemm.fp16"]}, {})
    here = Calibration((measured, *shipped.files)).of_few_rows().find("gemm", "fp16")
    assert here is not None
    assert here.level == "machine"


@pytest.mark.parametrize("name", ["int4", "nf4", "mxfp4"])
def test_weights_alone_in_few_bits_are_read_in_their_bytes_and_multiplied_in_16_bits(small: Generation, name: str):
    """On vLLM's cards one token reads a quarter of the bytes, and a long prompt gains nothing."""
    weights = stored(small, format_of(name))
    wide, narrow = (EngineStep(small, cluster(chip("a100-80gb-sxm")), weights=w)._kernels for w in (None, weights))
    assert weights.product_bytes < 0.6
    one = _product(1, 16384.0, 2.0)
    calibrated = wide._of_few_rows
    read_s = wide._times("gemm", "float16", one, calibrated).device_s[0]
    few_s = narrow._times("gemm", "float16", one.with_weights(weights.product_bytes), calibrated).device_s[0]
    assert few_s < 0.4 * read_s
    assert narrow._arithmetic(4096) == ""


@pytest.mark.parametrize(
    ("kind", "engine", "system", "cpu", "host"),
    [
        ("NVIDIA", "llamafile", "Linux", "AMD EPYC 7352 24-Core Processor (znver2)", "Linux"),
        ("NVIDIA", "llamafile", "Linux", "Intel Xeon Gold 6342 CPU @ 2.80GHz (icelake-server)", "Linux"),
        ("NVIDIA", "llamafile", "Windows", "AMD Ryzen 7 7800X3D 8-Core Processor (znver4)", "Windows, bf16 cache"),
        ("AMD", "llamafile", "Linux", "AMD Ryzen 9 9900X 12-Core Processor", "Linux, bf16 cache"),
        ("AMD", "llamafile", "Linux", "AMD Ryzen 9 5900X 12-Core Processor (znver3)", "Linux"),
        ("NVIDIA", "llamafile", "Linux", "Intel Xeon Platinum 8470 (sapphirerapids)", "Linux, bf16 cache"),
        ("NVIDIA", "llama.cpp", "linux", "AMD Ryzen 9 9900X 12-Core Processor", "Linux"),
        ("CPU", "llamafile", "Windows", "AMD Ryzen 9 9900X 12-Core Processor", "–"),
    ],
)
def test_hosts_that_multiply_bf16_compute_attention_under_llamafile(kind, engine, system, cpu, host):
    assert host_of(kind, engine, system, cpu) == host


def test_rows_of_a_table_are_runs_of_a_chip_a_model_and_a_host(tmp_path: Path):
    header = (
        "source,kind,device,device_memory_gb,os,host_cpu,model,family,quantization,generated_tokens_per_s,prompt_tokens_per_s"
    )
    card, zen4, zen3 = "NVIDIA GeForce RTX 4060 Ti", "Ryzen 7 7700 (znver4)", "Ryzen 7 5700X (znver3)"
    lines = [
        f"localscore,gpu,{card},16.0,Linux,{zen3},Llama 3.2 1B,llama-3.2-1b,Q4_K - Medium,{speed},1000" for speed in (100, 200)
    ]
    lines += [
        f"localscore,gpu,{card},8.0,Windows,{zen4},Llama 3.2 1B,llama-3.2-1b,Q4_K - Medium,50,500",
        f"llmfit,gpu,{card},16.0,linux,{zen4},Phi-4-mini-instruct,phi-4,Q4_K_M,80,",
        f"llmfit,gpu,An unknown card,16.0,linux,{zen4},phi-4,phi-4,Q4_K_M,80,",
    ]
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / "local_llm.csv").write_text("\n".join([header, *lines]), encoding="utf-8")
    by_host = {(run.engine, run.host): run for run in runs(tmp_path)}
    assert set(by_host) == {("llamafile", "Linux"), ("llamafile", "Windows, bf16 cache"), ("llama.cpp", "Linux")}
    usual = by_host["llamafile", "Linux"]
    assert (usual.chip, usual.runs, usual.written_per_s, usual.is_fitted) == ("rtx-4060-ti-16gb", 2, 175.0, True)
    beside = by_host["llamafile", "Windows, bf16 cache"]
    assert (beside.chip, beside.is_fitted) == ("rtx-4060-ti-8gb", False)
    assert by_host["llama.cpp", "Linux"].family == "phi-4-mini"
    assert chip_of("An unknown card", 16.0) is None


def test_llamafile_launches_what_a_graph_launches_for_llama_cpp(small: Generation):
    """The engines' own figures: on any card the older builds take longer, most on AMD's."""
    weights = stored(small, format_of("gguf-q4_k_m"))
    seconds = {
        (name, engine): EngineStep(small, cluster(chip(name)), costs=engine_of(engine).costs, weights=weights)([], 1, 100)
        for name in ("rtx-4090", "rx-7900-xt")
        for engine in ("llama.cpp", "llamafile")
    }
    slower = {name: seconds[name, "llamafile"] / seconds[name, "llama.cpp"] for name in ("rtx-4090", "rx-7900-xt")}
    assert 1.2 < slower["rtx-4090"] < slower["rx-7900-xt"]


def test_engines_bring_attention_of_their_own_to_gpus_before_ampere():
    """PyTorch repeats the keys of shared heads there and multiplies them one by one."""
    generation = EngineModel(served(job()), engine_of("vllm"), None, None, None).of(device_of("t4", load_catalog()))
    assert {layer.dtype for layer in generation.attention} == {"float16"}
    assert not any("bmm" in name or "softmax" in name for name in generation.tokens.operations.name)


@pytest.mark.parametrize("board", ["jetson-agx-orin-64gb", "jetson-agx-orin-32gb", "jetson-orin-nano-super-8gb"])
def test_the_gpus_of_boards_run_engines_in_16_bits_beside_their_host(board: str):
    of = chip(board)
    assert runs_on("llama.cpp", of)
    assert {"fp16", "bf16"} <= set(precisions_of(of))
    assert of.shares_host_memory


# The ends of each range as the engines' documentation has them.
@pytest.mark.parametrize(
    ("engine", "weights", "has", "lacks"),
    [
        ("vllm", "fp8", "t4 a100-80gb-sxm h100-80gb-sxm mi300x", "v100-sxm2-16gb mi250x"),
        ("vllm", "int8", "t4 a100-80gb-sxm h100-80gb-sxm", "v100-sxm2-16gb b200-180gb-sxm rtx-5090 mi300x"),
        ("vllm", "int4", "v100-sxm2-16gb t4 b200-180gb-sxm", ""),
        ("vllm", "mxfp4", "a100-80gb-sxm h100-80gb-sxm mi300x", "t4"),
        ("vllm", "nvfp4", "t4 h100-80gb-sxm b200-180gb-sxm", "v100-sxm2-16gb mi300x"),
        ("tensorrt-llm", "fp8", "l4 h100-80gb-sxm b200-180gb-sxm", "a100-80gb-sxm"),
        ("tensorrt-llm", "fp8-block", "h100-80gb-sxm b200-180gb-sxm", "l4 rtx-5090"),
        ("tensorrt-llm", "int4", "a100-80gb-sxm l4 h100-80gb-sxm", "b200-180gb-sxm"),
        ("tensorrt-llm", "nvfp4", "b200-180gb-sxm rtx-5090", "h100-80gb-sxm"),
        ("sglang", "fp8", "a100-80gb-sxm h100-80gb-sxm mi300x", "t4"),
        ("sglang", "nvfp4", "b200-180gb-sxm rtx-5090", "h100-80gb-sxm"),
        ("llama.cpp", "gguf-q4_k_m", "v100-sxm2-16gb mi250x apple-m2-max", ""),
        ("vllm", "", "v100-sxm2-16gb mi250x b200-180gb-sxm", ""),
    ],
)
def test_engines_have_kernels_of_a_format_on_some_of_their_gpus(engine: str, weights: str, has: str, lacks: str):
    assert [name for name in has.split() if not has_kernels(engine, weights, chip(name))] == []
    assert [name for name in lacks.split() if has_kernels(engine, weights, chip(name))] == []
    for name in lacks.split():
        nearest, *_ = nearest_formats(engine, weights, chip(name))
        assert has_kernels(engine, nearest, chip(name))
        assert engine in format_of(nearest).engines
