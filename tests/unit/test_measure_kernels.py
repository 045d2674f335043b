"""The microbenchmarks of kernels at tiny sizes: right results, wrong ones found out, growth, and what is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from gpuwise.measure.probes import cases, kernels, peaks, products, streaming  # noqa: E402
from gpuwise.measure.probes.cases import Case, Noise, ProbeKernel  # noqa: E402
from gpuwise.results.measurement import GROUPS, Timing  # noqa: E402

CPU = torch.device("cpu")
DTYPES = ("fp32", "bf16", "fp16")
SMALL = {
    "m": 24,
    "k": 32,
    "n": 20,
    "in_channels": 8,
    "out_channels": 12,
    "height": 9,
    "width": 9,
    "heads": 3,
    "queries": 70,
    "head_size": 16,
    "elements": 5000,
    "rows": 30,
    "columns": 50,
    "channels": 6,
    "parameters": 4000,
    "tensors": 4,
}


def small(case: Case) -> Case:
    sizes = {name: min(value, SMALL.get(name, 3 if name == "batch" else value)) for name, value in case.sizes.items()}
    if sizes.get("groups", 1) > 1:
        sizes |= {"groups": 8, "out_channels": 8}
    return replace(case, sizes=sizes)


ALL = [small(case) for case in kernels.all_cases(DTYPES)]
DISTINCT = list({(case.group, case.name, case.dtype, *case.sizes.items()): case for case in ALL}.values())
FP32 = [case for case in DISTINCT if case.dtype == "fp32"]


def told(case: Case) -> str:
    return f"{case.group}-{case.name}-{case.dtype}"


@pytest.fixture
def noise() -> Noise:
    return Noise(CPU)


@pytest.fixture
def said() -> list[str]:
    return []


class TestCases:
    def test_every_kernel_is_right(self, noise):
        wrong = [told(case) for case in DISTINCT if not case.make(noise, case.sizes).correct()]
        assert wrong == []

    def test_a_group_each_comes_first(self):
        found = kernels.all_cases(("fp32", "bf16"))
        groups = ["gemm", "conv", "attention", "elementwise", "reduction", "norm", "optimizer"]
        assert [case.group for case in found[:7]] == groups
        assert {case.group for case in found} == set(groups) <= set(GROUPS)
        keys = [(told(case), *case.sizes.items()) for case in found]
        assert len(keys) == len(set(keys))

    def test_dtypes(self):
        found = kernels.all_cases(("fp32", "bf16", "fp16", "tf32"))
        by_group = {group: {case.dtype for case in found if case.group == group} for group in GROUPS}
        assert by_group["gemm"] == by_group["conv"] == {"fp32", "bf16", "fp16", "tf32"}
        assert by_group["attention"] == {"fp32", "bf16", "fp16"}
        assert by_group["elementwise"] == by_group["reduction"] == by_group["norm"] == {"fp32", "bf16"}
        assert by_group["optimizer"] == {"fp32"}

    @pytest.mark.parametrize("case", FP32, ids=told)
    def test_work_grows_with_the_size_that_grows(self, case):
        grown = case.grown(4)
        assert grown.sizes == {**case.sizes, case.grows: 4 * case.sizes[case.grows]}
        assert case.bytes < grown.bytes <= 4 * case.bytes
        assert grown.flops == pytest.approx(4 * case.flops, rel=0.01)

    def test_operations_and_bytes(self):
        def work(group: str, name: str, **sizes: int) -> tuple[int, int]:
            case = next(case for case in ALL if (case.group, case.name, case.dtype) == (group, name, "bf16"))
            case = replace(case, sizes={**case.sizes, **sizes})
            return case.flops, case.bytes

        assert work("gemm", "product", m=2, k=3, n=5) == (60, 2 * (6 + 15 + 10))
        assert work("gemm", "batched product", m=2, k=3, n=5, batch=7) == (7 * 60, 7 * 2 * (6 + 15 + 10))
        image = {"batch": 2, "in_channels": 4, "out_channels": 8, "height": 10, "width": 10}
        assert work("conv", "convolution", **image) == (2 * 200 * 8 * 36, 2 * (800 + 1600 + 288))
        assert work("conv", "convolution, backward", **image) == (4 * 200 * 8 * 36, 2 * (2 * (800 + 288) + 1600))
        heads = {"batch": 2, "heads": 3, "queries": 10, "head_size": 8, "causal": 0}
        assert work("attention", "attention", **heads) == (4 * 6 * 100 * 8, 2 * 4 * 480)
        assert work("elementwise", "sum of two tensors", elements=10) == (10, 60)
        assert work("reduction", "cross entropy, backward", rows=2, columns=50) == (300, 400)
        assert work("norm", "layer norm", rows=2, columns=50) == (700, 400)
        assert next(case for case in kernels.all_cases(("fp32",)) if case.group == "optimizer").bytes == 280_000_000


class TestWrongResultsAreFoundOut:
    @pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "tf32"])
    def test_agree(self, dtype):
        exact = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        one_off = exact.clone()
        one_off[500] += 1.0
        assert cases.agree(exact.to(cases.DTYPES[dtype]), exact, dtype)
        for wrong in (torch.zeros_like(exact), exact.roll(1), 1.05 * exact, one_off, exact / 0):
            assert not cases.agree(wrong, exact, dtype)

    @pytest.mark.parametrize(("kernel", "kind"), [("mm", ""), ("bmm", "batched "), ("mv", "matrix-vector ")])
    def test_products(self, kernel, kind, noise, monkeypatch):
        case = next(case for case in FP32 if case.name == f"{kind}product")
        monkeypatch.setattr(torch, kernel, lambda a, b, out: out)  # does nothing
        assert not case.make(noise, case.sizes).correct()

    @pytest.mark.parametrize("case", [case for case in FP32 if case.group in ("conv", "attention")], ids=told)
    def test_convolutions_and_attention(self, case, noise, monkeypatch):
        name = "conv2d" if case.group == "conv" else "scaled_dot_product_attention"
        real = getattr(F, name)
        monkeypatch.setattr(F, name, lambda x, *args, **how: real(x, *args, **how) * (1 if x.dtype == torch.float64 else 1.01))
        assert not case.make(noise, case.sizes).correct()

    @pytest.mark.parametrize("backward", [False, True])
    @pytest.mark.parametrize("name", ["_GELU", "_SOFTMAX", "_CROSS_ENTROPY", "_LAYER_NORM", "_RMS_NORM", "_BATCH_NORM"])
    def test_functions(self, name, backward, noise):
        function = getattr(streaming, name)
        wrong = replace(function, run=lambda *args: 1.01 * function.run(*args))
        sizes = dict(zip(function.sizes, (5, 6, 7, 8), strict=False))
        assert streaming._applied(function, backward, "fp32", noise, sizes).correct()
        assert not streaming._applied(wrong, backward, "fp32", noise, sizes).correct()

    def test_a_step_of_another_optimizer(self, noise, monkeypatch):
        case = next(case for case in FP32 if case.group == "optimizer")
        kernel = case.make(noise, case.sizes)
        kernel.run()
        kernel.run()
        assert kernel.correct()

        class Hasty(torch.optim.AdamW):
            def __init__(self, parameters, *, lr, **settings):
                super().__init__(parameters, lr=1.05 * lr, **settings)

        monkeypatch.setattr(torch.optim, "AdamW", Hasty)
        assert not case.make(noise, case.sizes).correct()


class TestRows:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch):
        monkeypatch.setattr(kernels, "TRIAL", {"cpu": 8})
        monkeypatch.setattr(kernels, "SLOW", 1e9)
        monkeypatch.setattr(kernels, "LEAST_S", {"cpu": 0.0})
        monkeypatch.setattr(kernels, "LEAST_SHARE_S", 0.01)

    @pytest.fixture
    def one(self, monkeypatch) -> Callable[[Callable[[Noise, Mapping[str, int]], ProbeKernel]], None]:
        """Sets the kernel that alone is measured, of 100 operations and 1 MiB an element."""

        def set_to(make: Callable[[Noise, Mapping[str, int]], ProbeKernel]) -> None:
            case = Case(
                "elementwise",
                "one",
                "fp32",
                {"elements": 3},
                "elements",
                lambda s: (100 * s["elements"], s["elements"] << 20),
                make,
            )
            monkeypatch.setattr(kernels, "all_cases", lambda dtypes: [case])

        return set_to

    def test_a_row_of_each(self, said, monkeypatch):
        monkeypatch.setattr(kernels, "all_cases", lambda dtypes: FP32)
        found = list(kernels.rows(60.0, CPU, said.append, beyond_bytes=2**16))
        assert [(r.group, r.name, r.dtype, r.sizes) for r in found] == [(c.group, c.name, c.dtype, c.sizes) for c in FP32]
        assert all(r.verified and r.bytes > 0 and r.timing.rounds >= 3 for r in found)
        assert said == []

    def test_without_time_nothing_is_measured_and_that_is_said(self, said, monkeypatch):
        monkeypatch.setattr(kernels, "all_cases", lambda dtypes: FP32[:5])
        assert list(kernels.rows(0.0, CPU, said.append)) == []
        assert said == ["5 of 5 kernels were left out: the time that they take was not there."]

    def test_what_takes_too_long_is_left_out(self, said, monkeypatch, one):
        one(lambda noise, sizes: ProbeKernel(lambda: None, lambda: True))
        monkeypatch.setattr(kernels, "_taken_s", lambda kernel, device: 1e6)
        assert list(kernels.rows(1e3, CPU, said.append)) == []
        assert said[0].startswith("1 of 1 kernels")

    def test_what_is_done_too_soon_grows(self, said, monkeypatch, one):
        one(lambda noise, sizes: ProbeKernel(lambda: None, lambda: True))
        taken = iter((1e-5, 4e-5, 6e-5))
        monkeypatch.setattr(kernels, "LEAST_S", {"cpu": 5e-5})
        monkeypatch.setattr(kernels, "_taken_s", lambda kernel, device: next(taken))
        (row,) = kernels.rows(1e3, CPU, said.append)
        assert row.sizes == {"elements": 3 * 8 * 2}
        assert (row.flops, row.bytes) == (4800, 48 << 20)

    def test_growth_ends_where_memory_does(self, said, monkeypatch, one):
        one(lambda noise, sizes: ProbeKernel(lambda: None, lambda: True))
        monkeypatch.setattr(kernels, "LEAST_S", {"cpu": 5e-5})
        monkeypatch.setattr(kernels, "_taken_s", lambda kernel, device: 4e-5)
        monkeypatch.setattr(kernels, "free_bytes", lambda device: 100 << 20)
        (row,) = kernels.rows(1e3, CPU, said.append)
        assert row.bytes == 24 << 20

    @pytest.mark.parametrize(("cache", "sets"), [(2**20, 1), (2**23, 6), (2**40, 8)])
    def test_inputs_are_rotated_that_exceed_the_cache(self, cache, sets, said, monkeypatch, one):
        made = []

        def make(noise: Noise, sizes: Mapping[str, int]) -> ProbeKernel:
            made.append(sizes)
            return ProbeKernel(lambda: None, lambda: True)

        one(make)
        monkeypatch.setattr(kernels, "free_bytes", lambda device: 100 << 20)  # a quarter is enough for 8 sets
        monkeypatch.setattr(kernels, "_taken_s", lambda kernel, device: 1e-6)
        assert len(list(kernels.rows(1e6, CPU, said.append, beyond_bytes=cache))) == 1
        assert len(made) == sets

    def test_a_wrong_result_is_said(self, said, one):
        one(lambda noise, sizes: ProbeKernel(lambda: None, lambda: False))
        (row,) = kernels.rows(1e3, CPU, said.append)
        assert not row.verified
        assert said == ["one in fp32: the result was wrong (elements 3)."]

    def test_a_kernel_that_does_not_exist_is_said(self, said, one):
        def fail(noise: Noise, sizes: Mapping[str, int]) -> ProbeKernel:
            raise NotImplementedError("no such kernel\n  for this device")

        one(fail)
        assert list(kernels.rows(1e3, CPU, said.append)) == []
        assert said == ["one in fp32 was left out: no such kernel for this device"]

    def test_no_memory_is_said(self, said, monkeypatch, one):
        one(lambda noise, sizes: ProbeKernel(lambda: None, lambda: True))
        monkeypatch.setattr(kernels, "free_bytes", lambda device: 1000)
        assert list(kernels.rows(1e3, CPU, said.append)) == []
        assert said == ["one in fp32 was left out: too little memory is free."]

    def test_a_dtype_without_units_is_left_out(self, said, monkeypatch, noise):
        seconds = iter((1.0, 9.0))
        monkeypatch.setattr(kernels, "SLOW", 4)
        monkeypatch.setattr(kernels, "timed", lambda runs, **how: Timing(next(seconds), 1.0, 1.0, 1.0, 3))
        assert kernels.fast_dtypes(noise, said.append) == ["fp32"]
        assert said == ["kernels in bf16 were left out: a product takes 9 times as long as in fp32."]


def test_numerics_are_as_before():
    def now() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    before = now()
    with peaks.numerics("tf32"):
        assert now() == ("high", True)
    with peaks.numerics("fp32"):
        assert now() == ("highest", False)
    assert now() == before


def test_noise(noise):
    found = noise(1500, 1000)
    assert found.std() == pytest.approx(1.0, rel=0.01)
    assert len(found[:, 0].unique()) > 990  # rows differ, though the numbers are handed out again
    assert not torch.equal(found, noise(1500, 1000))
    assert torch.equal(found, Noise(CPU)(1500, 1000))
    assert noise(3, dtype="bf16", grad=True).requires_grad


def test_attention_is_that_of_the_formula():
    q, k, v = torch.randn(3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([0, 5])
    for causal in (False, True):
        exact = F.scaled_dot_product_attention(q, k, v, is_causal=causal)[rows]
        assert torch.allclose(products._attended((q, k, v), rows, causal), exact)
