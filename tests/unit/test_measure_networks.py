"""The networks that a measurement watches: they can be built and trained, and none of them is validated on."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from calibration_samples import recorded  # noqa: E402

from gpuwise.cost.kernels.classes import classes  # noqa: E402
from gpuwise.measure import networks as module  # noqa: E402
from gpuwise.measure.networks import NETWORKS, QUICK, scaled  # noqa: E402
from gpuwise.measure.small_networks import SMALL  # noqa: E402
from gpuwise.measure.stages import stages  # noqa: E402
from gpuwise.measure.suite import SUITE  # noqa: E402
from gpuwise.measure.writing_networks import WRITING  # noqa: E402
from gpuwise.strategy import Strategy  # noqa: E402
from gpuwise.trace import KINDS  # noqa: E402
from gpuwise.tracing.record import record_many  # noqa: E402

LIGHT = [
    name for name, _, _ in NETWORKS[:QUICK] if name not in ("UNet, width 64", "ResNet, 3 x 3", "depthwise convolution net")
]


def test_names_are_their_own():
    names = [name for name, _, _ in (*NETWORKS, *WRITING, *SMALL)]
    assert len(set(names)) == len(names)
    assert not set(names) & set(SUITE)
    assert len(NETWORKS) > QUICK


@pytest.mark.parametrize(("name", "job", "samples"), [*NETWORKS, *WRITING, *SMALL])
def test_each_can_be_built_and_takes_its_batch(name, job, samples):
    with torch.device("meta"):
        model = job.model()
        batch = job.batch(2)
    assert 1 <= samples <= 4096
    assert sum(p.numel() for p in model.parameters()) > 1000
    assert all(p.is_meta for p in model.parameters())
    assert {len(tensor) for tensor in batch.values()} == {2}


@pytest.mark.parametrize("name", LIGHT)
def test_the_quick_ones_train(name):
    trace = recorded(name)
    phases = {operator for operator in trace.operations.name if "_fused_adam" in operator or "backward" in operator}
    assert phases
    assert trace.model_flops > 0
    assert any(kind in {KINDS[k] for k in trace.operations.kind} for kind in ("gemm", "conv", "attention"))


@pytest.mark.parametrize(("name", "job", "samples"), WRITING)
def test_a_pass_that_writes_multiplies_each_matrix_by_few_rows_and_attends_to_the_cache(name, job, samples):
    (trace,) = record_many(job, Strategy(micro_batch=samples, mode="infer"), [samples], target="cpu", once=[samples])
    model = job.model()
    matrices = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    cached = model.cached.numel() * samples
    config = model.model.config
    shared = config.heads // getattr(config, "kv_heads", config.heads)
    attention = 2 * shared * (cached + cached // model.cached.shape[-2])  # the token itself is in the cache, too
    assert trace.model_flops == pytest.approx(2 * samples * matrices + attention, rel=1e-3)


def of_class(name, kernel_class):
    """The operations of a small network's pass that are of a class, as (groups, columns, depth)."""
    _, job, samples = next(network for network in SMALL if network.name == name)
    strategy = Strategy(micro_batch=samples, mode="infer")
    (trace,) = record_many(job, strategy, [samples], target="cpu", once=[samples])
    rows = [rows for (key, _), rows in classes(trace).items() if key == kernel_class]
    columns = [trace.operations.column(name) for name in ("batch", "n", "k")]
    return {tuple(int(column[row]) for column in columns) for row in np.concatenate([*rows, np.zeros(0, int)]).astype(int)}


def test_a_small_convnext_convolves_channel_by_channel_in_channels_last_as_real_ones_do():
    kernels = {k for _, n, k in of_class("ConvNeXt, an image", "conv_depthwise_channels_last") if n == 1}
    assert kernels >= {9, 25}
    assert len(of_class("ConvNeXt, an image", "conv_depthwise")) == 1, "the first block reads no sum yet"


def test_small_passes_have_groups_of_few_channels_and_depthwise_ones():
    assert {n for _, n, _ in of_class("ResNeXt, an image", "conv_grouped")} == {8, 24}
    assert {k for _, _, k in of_class("depthwise convolution net, an image", "conv_depthwise")} >= {9, 25}


def test_networks_of_a_seed_are_the_same_each_time_and_differ_between_seeds():
    def sizes(seed):
        with torch.device("meta"):
            model = module.convolution_net(seed, width=24, kernels=(3, 5), stage=module.mbconv_stage)
        return [tuple(p.shape) for p in model.parameters()]

    assert sizes(1) == sizes(1) != sizes(2)


def test_a_larger_device_gets_more_samples(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert scaled(3, torch.device("cpu")) == 3
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert scaled(3, torch.device("cpu")) == 48


def test_the_worker_and_the_plan_mean_the_same_networks():
    places = [
        stage.network
        for stage in stages(quick=False, networks=len(NETWORKS), quick_networks=QUICK, half=None)
        if stage.name == "network"
    ]
    assert max(places) == len(NETWORKS) - 1
    assert all(inspect.isfunction(part) for part in (module.resnet_stage, module.vgg_stage, module.mbconv_stage))
