"""Synthetic MachineMeasurements: figures like those of two cores, and like those of a GPU with five dtypes."""

from __future__ import annotations

from dataclasses import replace

from gpuwise.notes import Note
from gpuwise.notes.measuring import processors_used_by_others
from gpuwise.results.measurement import AchievedPeak, MachineMeasurement, MeasuredRow, MemoryLevel, Timing

MIB = 2**20


def timing(median_s: float, spread: float = 0.02) -> Timing:
    return Timing(median_s, median_s * (1 - spread), median_s * (1 + spread), median_s * (1 - spread), 30)


def arithmetic(
    group: str, name: str, dtype: str, flops: float, intensity: float, flops_per_s: float, **sizes: int
) -> MeasuredRow:
    return MeasuredRow(group, name, timing(flops / flops_per_s), dtype, sizes, round(flops), round(flops / intensity))


def moving(group: str, name: str, moved: int, bytes_per_s: float, dtype: str = "fp32", **sizes: int) -> MeasuredRow:
    return MeasuredRow(group, name, timing(moved / bytes_per_s), dtype, sizes, 0, moved)


def gemms(dtype: str, peak: float, bandwidth: float, item: int) -> list[MeasuredRow]:
    """Squares and thin ones, under the roofs."""
    rows = []
    for m, k, n in ((64, 64, 64), (256, 256, 256), (1024, 1024, 1024), (4096, 4096, 4096), (1, 4096, 4096), (16, 4096, 4096)):
        flops, moved = 2 * m * n * k, item * (m * n + m * k + k * n)
        reached = 0.9 / (1 / peak + moved / flops / bandwidth + 4e-6 / flops)
        rows.append(arithmetic("gemm", "product", dtype, flops, flops / moved, reached, m=m, k=k, n=n))
    return rows


def others(dtype: str, peak: float, bandwidth: float, item: int) -> list[MeasuredRow]:
    return [
        arithmetic("conv", "3x3 convolution, 64 channels", dtype, 3e9, 90, 0.55 * min(peak, 90 * bandwidth)),
        arithmetic("attention", "attention over 1,024 tokens", dtype, 2e9, 60, 0.4 * min(peak, 60 * bandwidth)),
        moving("elementwise", "sum of two tensors", 192 * MIB, 0.92 * bandwidth, dtype),
        moving("reduction", "sum over rows", 64 * MIB, 0.85 * bandwidth, dtype),
        arithmetic("norm", "layer normalisation", dtype, 8e7, 1.0 / item * 4, 0.7 * bandwidth * 4 / item),
        arithmetic("optimizer", "AdamW, fused", dtype, 1.4e8, 0.45, 0.8 * 0.45 * bandwidth),
    ]


def streams(levels: tuple[MemoryLevel, ...]) -> list[MeasuredRow]:
    rows: list[MeasuredRow] = []
    begin = 2**14
    for level in levels:
        end = level.size_bytes or 2**30
        while begin <= end:
            rows.append(moving("memory", "triad", begin, 0.95 * level.measured, working_set_bytes=begin))
            begin *= 4
    return rows


CPU_MEMORY = (
    MemoryLevel("L1", 310e9, 64 * 1024, None, 0.03),
    MemoryLevel("L2", 145e9, 2 * MIB, None, 0.02),
    MemoryLevel("L3", 88e9, 32 * MIB, None, 0.05),
    MemoryLevel("memory", 31e9, None, 38e9, 0.013),
)
DETECTED = {
    "cpu": {
        "name": "AMD EPYC 9R14",
        "cores": 2,
        "threads": 2,
        "clock_hz": None,
        "flags": ["avx512", "avx512-bf16"],
        "cache_bytes": {"L1": 32768, "L2": MIB, "L3": 32 * MIB},
    },
    "memory": {"total_bytes": 8053063680, "available_bytes": 6442450944, "channels": None, "kind": None},
    "container": {"cpus": 2.0, "memory_bytes": None},
    "disks": [
        {
            "use": "working folder",
            "file_system": "ext4",
            "free_bytes": 40 * 2**30,
            "device": "nvme0n1",
            "model": None,
            "rotational": False,
        }
    ],
    "interconnect": {"sockets": 1, "numa_nodes": [{"index": 0, "cpus": "0-1"}], "gpu_pairs": []},
    "system": {"name": "Linux 6.18", "hypervisor": True, "product": ""},
    "gpus": [],
    "a part of a later version": {"odd": [1, 2]},
}
CPU = MachineMeasurement(
    machine="AMD EPYC 9R14, 2 cores, 7.5 GiB",
    chip="here-cpu",
    device="cpu",
    taken="2026-05-04 12:30 UTC",
    seconds=253.0,
    quick=False,
    complete=True,
    interrupted=False,
    rows=(
        *streams(CPU_MEMORY),
        *gemms("bf16", 390e9, 31e9, 2),
        *gemms("fp32", 205e9, 31e9, 4),
        *others("fp32", 205e9, 31e9, 4),
        MeasuredRow("step", "MLP", timing(1.4e-6), "fp32"),
        moving("collective", "all_reduce", 2**16, 0.4e9, bytes=2**16),
        moving("collective", "all_reduce", 64 * MIB, 1.9e9, bytes=64 * MIB),
        replace(moving("collective", "broadcast", 64 * MIB, 2.1e9, bytes=64 * MIB), verified=False),
    ),
    peaks=(
        AchievedPeak("bf16", 390e9, 473e9, "2048 x 2048 x 2048", 0.021),
        AchievedPeak("fp32", 205e9, 237e9, "4096 x 4096 x 4096", 0.012),
    ),
    memory=CPU_MEMORY,
    typed_notes=(
        processors_used_by_others(share=0.31),
        Note("some", "int8 was left out: 20 times slower than fp32"),
    ),
    calibration="/home/me/.config/gpuwise/here/epyc-2c.toml",
    error=0.062,
    detected=DETECTED,
    torch_version="2.13.0",
)

GPU_MEMORY = (MemoryLevel("L2", 9.1e12, 50 * MIB, None, 0.02), MemoryLevel("memory", 4.2e12, None, 4.8e12, 0.004))
GPU_PEAKS = (
    AchievedPeak("fp8", 1410e12, 1979e12, "8192 x 8192 x 8192", 0.01),
    AchievedPeak("bf16", 742e12, 989.5e12, "8192 x 8192 x 8192"),
    AchievedPeak("fp16", 721e12, 989.5e12, "8192 x 8192 x 8192", 0.02),
    AchievedPeak("tf32", 402e12, 494.7e12, "8192 x 8192 x 8192"),
    AchievedPeak("fp32", 51e12, 66.9e12, "8192 x 8192 x 8192", 0.003),
)
GPU = MachineMeasurement(
    machine="1 × NVIDIA H200 with INTEL(R) XEON(R) PLATINUM 8558, 128.0 GiB",
    chip="h200-141gb-sxm",
    device="cuda",
    taken="2026-05-04 12:30 UTC",
    seconds=121.0,
    quick=True,
    complete=True,
    interrupted=False,
    rows=tuple(row for peak in GPU_PEAKS for row in gemms(peak.dtype, peak.measured, 4.2e12, 4 if "32" in peak.dtype else 2))
    + tuple(others("bf16", 742e12, 4.2e12, 2))
    + tuple(streams(GPU_MEMORY))
    + (
        moving("copy", "host to device, pinned", 64 * MIB, 53e9, bytes=64 * MIB),
        moving("copy", "device to host, pinned", 64 * MIB, 51e9, bytes=64 * MIB),
    ),
    peaks=GPU_PEAKS,
    memory=GPU_MEMORY,
    calibration="/home/me/.config/gpuwise/h200.toml",
    torch_version="2.13.0",
    detected={
        "gpus": [
            {
                "name": "NVIDIA H200",
                "memory_bytes": 150754820096,
                "power_limit_w": 650.0,
                "default_power_limit_w": 700.0,
                "driver": "580.65",
            }
        ],
        "interconnect": {"sockets": 2, "numa_nodes": [], "gpu_pairs": [{"first": 0, "second": 1, "path": "NVLink"}]},
    },
)

UNKNOWN_SHEET = replace(
    CPU,
    peaks=tuple(replace(peak, datasheet=None) for peak in CPU.peaks),
    memory=tuple(replace(level, datasheet=None) for level in CPU.memory),
)
EMPTY = replace(
    CPU,
    rows=(),
    peaks=(),
    memory=(),
    typed_notes=(),
    calibration="",
    error=None,
    complete=False,
    interrupted=True,
    seconds=0.4,
)
INCOMPLETE = replace(
    CPU, rows=CPU.rows[:9], peaks=(), complete=False, interrupted=True, calibration="", error=None, typed_notes=()
)
SAMPLES = {"cpu": CPU, "gpu": GPU, "unknown sheet": UNKNOWN_SHEET, "empty": EMPTY, "incomplete": INCOMPLETE}
