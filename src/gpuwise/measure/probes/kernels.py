"""The kernels of training at many sizes: matrix products, convolutions, attention, and what streams over memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, zip_longest
from math import ceil, log2

import torch

from gpuwise.hardware.detect import detect_cpu
from gpuwise.measure.probes.cases import Case, Noise, ProbeKernel
from gpuwise.measure.probes.convolutions import convolutions
from gpuwise.measure.probes.memory import SHARE_OF_FREE, caches_together, free_bytes
from gpuwise.measure.probes.peaks import has_tf32, numerics
from gpuwise.measure.probes.products import attentions, gemms
from gpuwise.measure.probes.streaming import elementwise, norms, optimizers, reductions
from gpuwise.measure.timing import device_seconds, timed, wall_seconds
from gpuwise.results.measurement import MeasuredRow

# A kernel that is done sooner is grown: it would show the launch, not the device; on a GPU, what autograd takes on the host.
LEAST_S = {"cpu": 5e-5, "cuda": 2e-4}
LEAST_SHARE_S = 0.25  # for one kernel: with less its median is not to be trusted
FEWEST_RUNS = 8  # to try it, warm up, time three rounds and check
LARGEST_SHARE = 2.5  # of its part of the time that a slow kernel may take for these
BEYOND_CACHE, MOST_SETS, MOST_GROWTH = 2, 32, 2**12
SLOW = 4  # times slower than fp32: no units of its own
TRIAL = {"cpu": 512, "cuda": 2048}


def rows(budget_s: float, device: torch.device, say: Callable[[str], None], *, beyond_bytes: int = 0) -> Iterator[MeasuredRow]:
    """Rows of the groups from "gemm" to "optimizer", of each group in turn, the most telling kernel first.

    Arguments:
        beyond_bytes: the last cache; inputs are rotated that exceed it. Asked of the system where it is not given.
    """
    began = time.perf_counter()
    noise, cold_bytes = Noise(device), BEYOND_CACHE * (beyond_bytes or _last_cache_bytes(device))
    torch.optim.AdamW([noise(1)])  # the first optimizer loads a good part of PyTorch: nothing that a kernel takes
    cases, late = all_cases(fast_dtypes(noise, say)), 0
    best: dict[tuple[str, str], float] = {}  # operations a second so far, by group and dtype
    for place, case in enumerate(cases):
        left_s = budget_s - (time.perf_counter() - began)
        share_s = min(left_s, max(LEAST_SHARE_S, left_s / (len(cases) - place)))
        least_s = case.flops / best.get((case.group, case.dtype), float("inf"))
        if left_s <= 0 or FEWEST_RUNS * least_s > LARGEST_SHARE * share_s:
            late += 1
            continue
        try:
            with numerics(case.dtype):
                row = _row(case, share_s, noise, cold_bytes)
        except RuntimeError as error:
            say(f"{case.name} in {case.dtype} was left out: {' '.join(str(error).split())[:160]}")
            continue
        if row is None:
            late += 1
            continue
        best[case.group, case.dtype] = max(row.flops_per_s, best.get((case.group, case.dtype), 1.0))
        if not row.verified:
            say(f"{case.name} in {case.dtype}: the result was wrong ({', '.join(f'{k} {v}' for k, v in row.sizes.items())}).")
        yield row
    if late:
        say(f"{late} of {len(cases)} kernels were left out: the time that they take was not there.")


def all_cases(dtypes: Sequence[str]) -> list[Case]:
    """Of each group in turn, so that whatever time there is covers all of them."""
    wide = [dtype for dtype in dtypes if dtype != "tf32"]  # products and convolutions alone have it
    widths = wide[:2]  # fp32 and one of 16 bits, as only their widths matter
    groups = (
        gemms(dtypes),
        convolutions(dtypes),
        attentions(wide),
        elementwise(widths),
        reductions(widths),
        norms(widths),
        optimizers(),
    )
    return [case for case in chain.from_iterable(zip_longest(*groups)) if case is not None]


def fast_dtypes(noise: Noise, say: Callable[[str], None]) -> list[str]:
    """fp32 and what is not far slower than that in a matrix product."""
    device, rates = noise.device, {}
    names = ["fp32", "bf16"]
    if device.type == "cuda":
        names += ["fp16"]
        names += ["tf32"] if has_tf32(device) else []
    side = TRIAL[device.type]
    for name in names:
        a, b = (noise(side, side, dtype=name) for _ in range(2))
        try:
            with numerics(name):
                rates[name] = 1 / timed([partial(torch.mm, a, b)], budget_s=0.02, device=device).median_s
        except RuntimeError as error:
            say(f"kernels in {name} were left out: {' '.join(str(error).split())[:160]}")
            continue
        slower = rates.get("fp32", 0.0) / rates[name]
        if slower > SLOW:
            say(f"kernels in {name} were left out: a product takes {slower:.0f} times as long as in fp32.")
            del rates[name]
    return list(rates)


def _row(case: Case, share_s: float, noise: Noise, cold_bytes: int) -> MeasuredRow | None:
    """None where the kernel takes too long."""
    began, device = time.perf_counter(), noise.device
    free = free_bytes(device)
    most_bytes = free // SHARE_OF_FREE if free is not None else 2**30
    if case.bytes > most_bytes:
        raise RuntimeError("too little memory is free.")
    case, kernel, made_s, taken_s = _grown(case, most_bytes, noise)
    if FEWEST_RUNS * taken_s > LARGEST_SHARE * share_s:
        return None
    fitting = min(share_s / 2 / (made_s + 2 * taken_s), most_bytes / case.bytes)
    sets = int(max(1, min(fitting, ceil(cold_bytes / case.bytes), MOST_SETS)))
    kernels = [kernel, *(case.make(noise, case.sizes) for _ in range(sets - 1))]
    left_s = share_s - (time.perf_counter() - began)
    timing = timed([kernel.run for kernel in kernels], budget_s=left_s, device=device)
    return MeasuredRow(case.group, case.name, timing, case.dtype, case.sizes, case.flops, case.bytes, kernels[-1].correct())


def _grown(case: Case, most_bytes: int, noise: Noise) -> tuple[Case, ProbeKernel, float, float]:
    """The case so large that it takes LEAST_S, inputs, and the seconds that making these and one run took."""
    growth, least_s = 1, LEAST_S[noise.device.type]
    while True:
        began = time.perf_counter()
        kernel = case.make(noise, case.sizes)
        made_s = time.perf_counter() - began
        taken_s = _taken_s(kernel, noise.device)
        more = 2 ** ceil(log2(min(least_s / max(taken_s, 1e-7), 16))) if taken_s < least_s else 1
        if more == 1 or growth * more > MOST_GROWTH or more * case.bytes > most_bytes:
            return case, kernel, made_s, taken_s
        case, growth = case.grown(more), growth * more


def _taken_s(kernel: ProbeKernel, device: torch.device) -> float:
    """Of the second run, as the first makes room and chooses algorithms; unless that already took all the time."""
    once = device_seconds if device.type == "cuda" else wall_seconds
    taken = once(kernel.run)
    return taken if taken > LEAST_SHARE_S else min(taken, once(kernel.run))


def _last_cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max(caches_together(detect_cpu(), torch.get_num_threads()).values(), default=2**25)
