"""What must hold for any trace and chip: a faster chip is never slower, more work never quicker, sums are exact."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.cost.calibration import shipped
from gpuwise.cost.price import price
from gpuwise.cost.rates import precisions_of
from gpuwise.cost.single_kernel import kernel_forecast
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.strategy import Strategy
from gpuwise.trace.header import Header, RankGroup
from gpuwise.trace.parallel.communication import Collective, Communication
from gpuwise.trace.tables import CATEGORIES, COLUMNS, KINDS, PHASES, Operations, OperationSequence, Storages
from gpuwise.trace.trace import Trace

CATALOG = Catalog()
USUAL = ("h100-80gb-sxm", "rtx-4090", "v100-sxm2-32gb", "mi300x", "tpu-v5e", "xeon-8480plus", "apple-m4")
CALIBRATED = [of for level, of in shipped() if level == "chip"]
CHIPS = [CATALOG.chip(name) for name in dict.fromkeys((*USUAL, *CALIBRATED))]
LINK = Link("l", "link", "scale-up", per_direction_bytes_per_s=5e10)
DTYPES = {"fp32": "float32", "amp-fp16": "float16", "amp-bf16": "bfloat16"}
SIZES = st.integers(1, 4096)


def traffic(devices, *, calls=1, overlaps="last backward", **payloads):
    """Collectives over all devices; payloads: bytes by operation."""
    group = RankGroup("dp_replicate", devices, 1)
    return Communication().and_also(*(Collective(name, group, size, calls, overlaps) for name, size in payloads.items()))


@st.composite
def cases(draw, chips=CHIPS):
    """A trace and a chip that computes in its types."""
    chip = draw(st.sampled_from(chips))
    return draw(traces([DTYPES[precision] for precision in precisions_of(chip) if precision in DTYPES])), chip


@st.composite
def traces(draw, dtypes):
    rows = draw(st.lists(st.tuples(st.sampled_from(range(len(KINDS))), SIZES, SIZES, SIZES, SIZES), min_size=1, max_size=6))
    types = tuple(draw(st.sampled_from(dtypes)) for _ in rows)
    names = tuple(f"op{i}{draw(st.sampled_from(['', '_backward']))}" for i in range(len(rows)))
    values = np.zeros((len(rows), len(COLUMNS)), dtype=np.int64)
    for i, (kind, batch, m, n, k) in enumerate(rows):
        flops = 2 * batch * m * n * k if KINDS[kind] in ("gemm", "conv", "attention") else 0
        values[i] = [flops, 4 * batch * (m * k + k * n), 4 * batch * m * n, 0, 1, batch, m, n, k, 0]
    count = draw(st.integers(1, 30))
    which = np.array(draw(st.lists(st.integers(0, len(rows) - 1), min_size=count, max_size=count)))
    phase = np.array(draw(st.lists(st.integers(0, len(PHASES) - 1), min_size=count, max_size=count)))
    stored = draw(
        st.lists(
            st.tuples(
                st.integers(0, 10**9), st.integers(0, len(CATEGORIES) - 1), st.integers(-1, count - 1), st.integers(0, count)
            ),
            max_size=8,
        )
    )
    stored = np.array([(s, c, b, max(b, d)) for s, c, b, d in stored], dtype=np.int64).reshape(-1, 4)
    header = Header("drawn", "", {"micro_batch": 2}, Strategy(micro_batch=2), 1, 1)
    operations = Operations(names, np.array([r[0] for r in rows]), types, values)
    sequence = OperationSequence(which, np.zeros(count, dtype=np.int64), phase, np.zeros(count, dtype=np.int64))
    storages = Storages(stored[:, 0], stored[:, 1], np.zeros(len(stored), dtype=np.int64), stored[:, 2], stored[:, 3])
    return Trace(header, operations, sequence, storages, ("net",)).check()


def step_s(trace, chip, communication=None, **shape):
    return price(
        trace, communication or Communication(), Cluster(chip, **shape), strategy=trace.header.strategy
    ).step_time_s.value


@settings(deadline=None, max_examples=60)
@given(cases(), st.floats(1, 10))
def test_more_bandwidth_or_arithmetic_is_never_slower(case, factor):
    trace, chip = case
    wide = replace(chip, memory_bandwidth_bytes_per_s=chip.memory_bandwidth_bytes_per_s * factor)
    assert step_s(trace, wide) <= step_s(trace, chip) * (1 + 1e-9)
    # With the power to feed them: more units on the same watts run at a lower clock.
    fast = replace(chip, peak_flops_per_s={k: v * factor for k, v in chip.peak_flops_per_s.items()}, tdp_w=chip.tdp_w * factor)
    assert step_s(trace, fast) <= step_s(trace, chip) * (1 + 1e-9)


@settings(deadline=None, max_examples=60)
@given(cases(), st.integers(2, 8))
def test_a_larger_micro_batch_never_takes_less_time(case, factor):
    """A batch scales flops and bytes of every operation, and its rows."""
    trace, chip = case
    values = trace.operations.values.copy()
    for name in ("flops", "bytes_read", "bytes_written", "m"):
        values[:, COLUMNS.index(name)] *= factor
    larger = replace(trace, operations=replace(trace.operations, values=values))
    assert step_s(larger, chip) >= step_s(trace, chip) * (1 - 1e-9)


@settings(deadline=None, max_examples=60)
@given(cases())
def test_sums_are_exact_and_the_interval_holds_its_value(case):
    trace, chip = case
    result = price(trace, Communication(), Cluster(chip), strategy=trace.header.strategy)
    assert abs(sum(result.bound.values()) - 1) < 1e-9
    assert abs(sum(result.breakdown.values()) / result.step_time_s.value - 1) < 1e-9
    assert all(share >= 0 for share in result.bound.values())
    assert sum(result.memory.by_category.values()) == result.memory.peak_allocated_bytes
    assert result.memory.peak_allocated_bytes <= result.memory.peak_reserved_bytes <= result.memory.device_bytes
    assert result.step_time_s.low < result.step_time_s.value < result.step_time_s.high
    assert sum(share for _, share in result.top_modules) <= 1 + 1e-9


@settings(deadline=None, max_examples=60)
@given(cases(CHIPS[:1]), st.integers(0, 10**10), st.integers(0, 10**10), st.integers(2, 16))
def test_more_traffic_or_more_devices_never_shorten_a_step(case, less, more, devices):
    trace, chip = case
    small, large = sorted((less, more))
    one = step_s(trace, chip)
    few = step_s(trace, chip, traffic(devices, all_reduce=small), devices_per_machine=devices, inside=LINK)
    many = step_s(trace, chip, traffic(devices, all_reduce=large), devices_per_machine=devices, inside=LINK)
    assert one * (1 - 1e-9) <= few <= many * (1 + 1e-9)
    wider = replace(LINK, per_direction_bytes_per_s=LINK.per_direction_bytes_per_s * 2)
    assert step_s(trace, chip, traffic(devices, all_reduce=large), devices_per_machine=devices, inside=wider) <= many * (
        1 + 1e-9
    )


GROWS = {  # sizes of a kernel, and which of them may not make it quicker by growing
    "gemm": ({"m": 300, "n": 256, "k": 512}, ("m",)),
    "gemm_batched": ({"batch": 6, "m": 300, "n": 256, "k": 64}, ("batch", "m")),
    "conv": ({"batch": 4, "in_channels": 64, "out_channels": 96, "height": 28, "width": 28, "kernel_size": 3}, ("batch",)),
    "attention": ({"batch": 2, "heads": 8, "kv_heads": 2, "queries": 128, "keys": 512, "head_size": 64}, ("batch", "queries")),
    "attention_backward": ({"batch": 2, "heads": 8, "queries": 128, "keys": 128, "head_size": 64}, ("batch", "queries")),
    "elementwise": ({"bytes_read": 2**20, "bytes_written": 2**20}, ("bytes_read", "bytes_written")),
    "softmax": ({"bytes_read": 2**20, "bytes_written": 2**20}, ("bytes_read", "bytes_written")),
    "norm_layer_backward": ({"bytes_read": 2**20, "bytes_written": 2**20}, ("bytes_read", "bytes_written")),
}


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(CHIPS), st.sampled_from(sorted(GROWS)), st.data(), st.floats(0, 1), st.floats(0, 1))
def test_a_kernel_whose_rows_or_bytes_grow_is_never_quicker(chip, kind, data, one, other):
    """Whatever was fitted: on every calibrated chip, over four decades of size. Of one class of kernels: attention of a few
    queries to many keys (decoding) runs other kernels than that of many."""
    sizes, names = GROWS[kind]
    dtype = data.draw(st.sampled_from([name for name in ("fp32", "fp16", "bf16") if chip.peak_flops_per_s.get(name)]))
    name = data.draw(st.sampled_from(names))
    small, large = sorted(max(2, round(sizes[name] * 10 ** (4 * share - 2))) for share in (one, other))

    few, many = (kernel_forecast(kind, chip, dtype=dtype, sizes={**sizes, name: size}) for size in (small, large))
    if few.kernel == many.kernel:
        assert many.time_s.value >= few.time_s.value * (1 - 1e-9)
