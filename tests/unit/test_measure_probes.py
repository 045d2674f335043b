"""The microbenchmarks beside kernels, on tiny budgets: what they give, that they check it, and what they leave behind."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from gpuwise.hardware.detect import Cache, Cpu  # noqa: E402
from gpuwise.measure.probes import copies, memory, peaks  # noqa: E402
from gpuwise.results.measurement import GROUPS, MeasuredRow, Timing  # noqa: E402

CPU = torch.device("cpu")
BUDGET_S = 0.02


def row(name: str, size: int, bytes_per_s: float, *, median_s: float = 1.0) -> MeasuredRow:
    timing = Timing(median_s, 0.9 * median_s, 1.1 * median_s, 0.9 * median_s, 5)
    return MeasuredRow("memory", name, timing, "fp32", {"working_set_bytes": size}, bytes=int(bytes_per_s * median_s))


@pytest.fixture
def said() -> list[str]:
    return []


class TestMemory:
    def test_every_kind_over_every_size(self, said, monkeypatch):
        monkeypatch.setattr(memory, "LARGEST_BYTES", {"cpu": 2**20})
        results = list(memory.rows(BUDGET_S, CPU, lambda note: said.append(note.text)))
        sizes = [2**power for power in range(14, 19)]  # a quarter of the largest, as time is short
        assert [(r.name, r.sizes["working_set_bytes"]) for r in results] == [(k, s) for k in memory.KINDS for s in sizes]
        assert all(r.verified and r.group in GROUPS and r.timing.least_s > 0 for r in results)
        assert not said

    @pytest.mark.parametrize("kind", memory.KINDS)
    def test_bytes_are_those_of_the_working_set(self, kind):
        kernel = memory._kernel(kind, memory._pool(2**18, CPU), 2**18)
        passes = memory.LEAST_READ_BYTES // 2**18 if kind == "read" else 1
        assert 0.99 * 2**18 <= kernel.bytes / passes <= 2**18

    @pytest.mark.parametrize("kind", memory.KINDS)
    def test_a_kernel_that_did_nothing_is_found_out(self, kind):
        kernel = memory._kernel(kind, memory._pool(2**16, CPU), 2**16)
        assert not kernel.correct()
        kernel.run()
        assert kernel.correct()

    def test_each_thread_reads_a_block_of_its_own(self, monkeypatch):
        monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
        kernel = memory._reading(memory._pool(2**16, CPU), 2**16)
        kernel.run()
        assert kernel.correct()
        assert kernel.bytes % 3 == 0

    def test_more_threads_than_the_smallest_set_has_lines(self, monkeypatch):
        monkeypatch.setattr(torch, "get_num_threads", lambda: 384)
        kernel = memory._reading(memory._pool(2**18, CPU), 2**14)
        kernel.run()
        assert kernel.correct()

    def test_the_pool_is_random(self):
        pool = memory._pool(2**22, CPU)
        assert pool.unique().numel() > 2**18
        assert torch.equal(pool, memory._pool(2**22, CPU))

    @pytest.mark.parametrize(
        ("budget_s", "beyond", "free", "largest"),
        [
            (60, 0, None, 2**30),
            (1, 0, None, 2**28),
            (1, 2**27, None, 2**29),
            (60, 2**29, None, 2**31),
            (60, 0, 2**28, 2**26),
            (60, 0, 2**28 - 1, 2**25),
        ],
    )
    def test_the_largest_working_set(self, budget_s, beyond, free, largest):
        assert memory.working_sets(budget_s, CPU, beyond, free)[-1] == largest

    def test_no_memory_is_said(self, said, monkeypatch):
        monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
        assert list(memory.rows(BUDGET_S, CPU, lambda note: said.append(note.text))) == []
        assert "too little memory is free" in said[0]

    def test_free_memory_is_below_what_is_there(self):
        free = memory.free_bytes(CPU)
        assert free is None or 0 < free < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + 1


class TestLevels:
    caches = {"L1": 2**16, "L2": 2**21, "L3": 2**25}  # noqa: RUF012

    def test_plateaus(self):
        rates = [
            (2**14, 400e9),
            (2**15, 390e9),
            (2**16, 300e9),
            (2**18, 200e9),
            (2**20, 210e9),
            (2**21, 150e9),
            (2**23, 90e9),
            (2**24, 95e9),
            (2**25, 60e9),
            (2**27, 30e9),
            (2**28, 31e9),
        ]
        result = memory.levels([row("copy", *rate) for rate in rates], self.caches)
        assert [(level.name, level.measured, level.size_bytes) for level in result] == [
            ("L1", 400e9, 2**16),
            ("L2", 210e9, 2**21),
            ("L3", 95e9, 2**25),
            ("memory", 31e9, None),
        ]
        assert result[0].spread == pytest.approx(0.1)

    def test_reading_counts_for_caches_but_not_for_the_memory_and_writing_for_none(self):
        rows = [
            row(kind, size, rate * 1e9)
            for size in (2**15, 2**28)
            for kind, rate in (("copy", 1), ("triad", 2), ("read", 3), ("write", 4))
        ]
        assert [(level.name, level.measured) for level in memory.levels(rows, self.caches)] == [("L1", 3e9), ("memory", 1.5e9)]

    def test_without_caches_there_is_the_memory(self):
        assert [level.name for level in memory.levels([row("triad", 2**28, 1e9)], {})] == ["memory"]

    def test_what_the_threads_have_together(self):
        each = ("0,4", "1,5", "2,6", "3,7")
        caches = (Cache(3, 2**25, ("0-7",)), Cache(1, 2**15, each), Cache(2, 2**20, each))
        cpu = Cpu("CPU", "AMD", 4, 8, cache_bytes={"L1": 2**15, "L2": 2**20}, caches=caches)
        assert list(memory.caches_together(cpu, 4).items()) == [("L1", 2**17), ("L2", 2**22), ("L3", 2**25)]
        assert memory.caches_together(cpu, 1) == {"L1": 2**15, "L2": 2**20, "L3": 2**25}
        assert memory.caches_together(replace(cpu, caches=()), 4) == {"L1": 2**15, "L2": 2**20}

    def test_without_rows_there_is_nothing(self):
        assert memory.levels([], self.caches) == []


class TestPeaks:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(peaks, "SHAPES", {"cpu": ((32, 32, 32), (64, 32, 48))})
        monkeypatch.setattr(peaks, "TRIAL", {"cpu": (16, 16, 16)})

    def test_rows_and_peaks_of_each_dtype(self, said):
        results = list(peaks.rows(0.5, CPU, lambda note: said.append(note.text)))
        left_out = {text.split(":")[0].removeprefix("no peak in ") for text in said if text.startswith("no peak")}
        assert {r.dtype for r in results} == set(peaks.DTYPES) - {"tf32"} - left_out >= {"fp32", "fp64", "bf16"}
        assert all(r.verified for r in results if r.dtype in {"fp32", "fp64", "bf16"})
        best = peaks.peaks(results)
        assert [peak.measured for peak in best] == sorted((peak.measured for peak in best), reverse=True)
        assert {peak.dtype for peak in best} == {r.dtype for r in results if r.verified}
        assert all(peak.shape.count(" × ") == 2 for peak in best)

    @pytest.mark.parametrize("name", ["fp32", "fp64", "fp16", "bf16", "int8", "fp8"])
    def test_right_products_are_told_from_wrong_ones(self, name):
        a, b = peaks._operands(name, (48, 256, 32), CPU, 0)
        exact = a.double() @ b.double()
        assert peaks._correct(name, a, b, exact.to(peaks.KEPT.get(name, peaks.DTYPES[name])))
        for wrong in (torch.zeros_like(exact), exact.roll(1, 0), exact * 1.5):
            assert not peaks._correct(name, a, b, wrong)

    def test_a_hopeless_dtype_is_measured_once(self, said, monkeypatch):
        rates = {"fp32": 100, "fp16": 4, "bf16": 6}

        def told(name, shape, budget_s, device):
            m, k, n = shape
            timing = row("", 1, 1, median_s=2 * m * k * n / rates[name]).timing
            return MeasuredRow("gemm", "product", timing, name, {"m": m, "k": k, "n": n}, 2 * m * k * n)

        monkeypatch.setattr(peaks, "DTYPES", dict.fromkeys(rates, torch.float32))
        monkeypatch.setattr(peaks, "_row", told)
        results = list(peaks.rows(1e9, CPU, lambda note: said.append(note.text)))
        assert [(r.dtype, r.sizes["n"]) for r in results] == [
            ("fp32", 32),
            ("fp32", 48),
            ("fp16", 16),
            ("bf16", 32),
            ("bf16", 48),
        ]
        assert len(said) == 1
        assert "fp16 runs 25 times slower" in said[0]

    def test_what_takes_too_long_is_not_swept(self, said, monkeypatch):
        monkeypatch.setattr(peaks, "DTYPES", {"fp32": torch.float32})
        monkeypatch.setattr(peaks, "SHAPES", {"cpu": ((2**15, 2**15, 2**15),)})
        assert [r.sizes["n"] for r in peaks.rows(BUDGET_S, CPU, lambda note: said.append(note.text))] == [16]

    def test_a_product_that_does_not_exist_is_said(self, said, monkeypatch):
        def none(*args, **kwargs):
            raise NotImplementedError("no _int_mm for this device")

        monkeypatch.setattr(torch, "_int_mm", none)
        monkeypatch.setattr(peaks, "DTYPES", {"int8": torch.int8})
        assert list(peaks.rows(BUDGET_S, CPU, lambda note: said.append(note.text))) == []
        assert said == ["no peak in int8: no _int_mm for this device"]

    def test_a_wrong_product_is_no_peak(self, said, monkeypatch):
        monkeypatch.setattr(peaks, "_correct", lambda *args: False)
        monkeypatch.setattr(peaks, "DTYPES", {"fp32": torch.float32})
        results = list(peaks.rows(BUDGET_S, CPU, lambda note: said.append(note.text)))
        assert results
        assert not any(r.verified for r in results)
        assert peaks.peaks(results) == []
        assert "was wrong" in said[0]


def test_a_cpu_has_no_copies(said):
    assert list(copies.rows(BUDGET_S, CPU, lambda note: said.append(note.text))) == []
    assert not said


def test_a_copy_is_checked():
    class Lost(torch.Tensor):
        def copy_(self, source, non_blocking=False):
            return self

    source, target = torch.rand(1000), torch.zeros(1000)
    assert copies._copied("there", source, target, BUDGET_S, CPU).verified
    assert not copies._copied("nowhere", source, target.as_subclass(Lost), BUDGET_S, CPU).verified
