"""Engines of exported graphs: what a pass costs under them, the real pass against PyTorch's, commands that run, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from gpuwise.api.forecasting import forecast_step
from gpuwise.api.serving import serve_plan
from gpuwise.api.serving_check import serve_check
from gpuwise.api.sources import source_of
from gpuwise.cli.main import main
from gpuwise.cost.forecast import Interval
from gpuwise.errors import GpuwiseError, InputError, MissingDependencyError, UnsupportedError
from gpuwise.job import Job
from gpuwise.report.printed import as_text
from gpuwise.serving.graph_engines import PARTS, graph_engines, parts_s
from gpuwise.serving.launch_graph import FILE
from gpuwise.strategy import Strategy

CPU = "ryzen-5950x"
INFER = Strategy(mode="infer", precision="fp32")


class TwoInputs(nn.Module):
    """Rows and indices of a table, which an argument without samples scales."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(50, 8), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, *, row: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        both = torch.cat([x, self.table(row)], dim=1)
        return {"y": self.linear(both) * scale, "width": both}


def two_inputs(**changes: object) -> Job:
    scale = torch.tensor([0.5, 1.0, 2.0, 4.0])
    return Job(
        **{
            "model": TwoInputs,
            "batch": lambda n: {"x": torch.randn(n, 8), "row": torch.randint(0, 50, (n,)), "unused": torch.zeros(n)},
            "loss": lambda model, batch: model(batch["x"], row=batch["row"], scale=scale)["y"].mean(),
            "name": "two",
            **changes,
        }
    )


class Doubtful(nn.Module):
    """Its last layer depends on values (branch), or differs from call to call (random)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.kind == "random":
            return y + torch.rand_like(y)
        return y.relu() if y.sum() > 0 else y


def doubtful(kind: str) -> Job:
    return Job(
        lambda: Doubtful(kind),
        lambda n: {"x": torch.randn(n, 8)},
        lambda model, batch: model(batch["x"]).mean(),
        name=kind,
    )


def exporter() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} exports and runs graphs")


@pytest.fixture(params=sorted(graph_engines()))
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine that is installed."""
    exporter()
    pytest.importorskip(request.param, reason=f"serves with --engine {request.param}")
    return request.param


# The forecast.


@pytest.mark.parametrize("name", sorted(graph_engines()))
def test_a_pass_is_the_sum_of_its_parts(name: str):
    each = graph_engines()[name]
    assert each.pass_s(dict.fromkeys(PARTS, 0.0)) == each.call_s
    seconds = [each.pass_s({**dict.fromkeys(PARTS, 0.0), part: 1.0}) - each.call_s for part in PARTS]
    assert seconds == pytest.approx([each.factors[part] for part in PARTS])
    assert each.spread[0] < 1 < each.spread[1]


def test_the_graph_has_no_kernels_of_its_own_for_what_follows_a_product():
    priced = forecast_step(source_of("timm:resnet18"), f"{CPU}:1", history=False, mode="infer", precision="fp32")
    parts, chip = parts_s(priced.trace, priced.device.chip), priced.device.chip
    assert parts["convolutions"] > parts["others"] > 0
    assert parts["depthwise"] == 0
    assert sum(parts.values()) < priced.forecast.step_time_s.value
    depthwise = forecast_step(
        source_of("timm:mobilenetv3_small_100"), f"{CPU}:1", history=False, mode="infer", precision="fp32"
    )
    assert parts_s(depthwise.trace, chip)["depthwise"] > 0


def test_errors_of_figures_and_engine_add_as_independent_ones():
    each = graph_engines()["onnxruntime"]
    low, high = each.spread
    alone = each.interval(2.0, Interval(1.0, 1.0, 1.0))
    assert (alone.low, alone.high) == pytest.approx((2 * low, 2 * high))
    both = each.interval(1.0, Interval(1.0, 0.5, 2.0))
    assert both.low < min(low, 0.5)
    assert 2.0 < both.high < 2 * high


@pytest.mark.parametrize("name", sorted(graph_engines()))
def test_a_plan_of_processors(name: str):
    plan = serve_plan("resnet50", on=f"{CPU},h100-sxm", rate="5/s", slo="latency=1s", image_size=224, engine=name)
    assert plan.engine.startswith(name)
    assert plan.precision == "fp32"
    row, refused = plan.rows
    eager = serve_plan(
        "resnet50", on=CPU, rate="5/s", slo="latency=1s", image_size=224, precision="fp32", batch=row.forward.batch
    )
    assert row.forward.seconds.value < eager.rows[0].forward.seconds.value
    assert row.forward.memory_bytes == eager.rows[0].forward.memory_bytes
    assert name in row.forward.why
    assert "processors alone" in refused.reason
    assert f"num_threads = {16}" in row.launch or f'NUM_THREADS": {16}' in row.launch
    printed = as_text(plan)
    assert row.launch in printed  # no line of the script is broken or moved
    assert json.loads(json.dumps(plan.to_dict()))["rows"][0]["launch"] == row.launch


def test_a_plan_without_devices_is_of_this_machine():
    (row,) = serve_plan("tabular-mlp", rate="5/s", engine="onnxruntime").rows
    assert row.owned


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precision": "bf16"}, "in fp32 alone"),
        ({"compile": True}, "--compile is of plain PyTorch"),
        ({"channels_last": True}, "--channels-last is of plain PyTorch"),
        ({"engine": "onnx"}, "--engine onnx is of models that write text"),
    ],
)
def test_errors_of_plans(settings: dict[str, object], words: str):
    with pytest.raises(GpuwiseError, match=words) as error:
        serve_plan("tabular-mlp", on=CPU, rate="5/s", **{"engine": "onnxruntime", **settings})
    assert error.value.exit_code == 2


@pytest.mark.parametrize("verb", ["serve-plan", "serve-check"])
def test_a_model_that_writes_text_is_refused(verb: str):
    result = CliRunner().invoke(main, [verb, "gpt2", "--rate", "1/s", "--engine", "onnxruntime"])
    assert result.exit_code == 2
    assert "gpt2 writes text" in result.output
    assert "--engine" in result.output.partition("try:")[2]


# The real pass.


def test_outputs_are_those_of_pytorch(engine: str):
    from gpuwise.job.batches import named_tensors
    from gpuwise.runtime.serving.exported import ExportedModel
    from gpuwise.runtime.serving.models import built, collated

    torch.manual_seed(3)
    job = two_inputs()
    model = ExportedModel(job, INFER, batch=5, runtime=engine)
    program = built(job, INFER, torch.device("cpu"))
    for group in ([0], [3, 1], [4, 0, 2, 2, 15]):
        samples = [
            {"x": torch.from_numpy(x), "row": torch.from_numpy(row), "unused": torch.zeros(1)}
            for x, row, _ in (model._samples[request] for request in group)
        ]
        expected = [tensor.numpy() for _, tensor in named_tensors(program.infer(collated(samples)))]
        outputs = model.run(group)
        assert [output.shape for output in outputs] == [(len(group), 4), (len(group), 16)]
        for output, other in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(output, other, rtol=1e-4, atol=1e-5)


def test_a_jobs_own_forward_pass_is_exported(engine: str):
    from gpuwise.runtime.serving.exported import ExportedModel

    def embeddings(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model[0](batch["x"]).mean(1)

    job = Job(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)),
        lambda n: {"x": torch.randn(n, 3, 4), "labels": torch.zeros(n)},
        lambda model, batch: model(batch["x"]).sum(),
        forward=embeddings,
    )
    torch.manual_seed(3)
    model = ExportedModel(job, INFER, batch=4, runtime=engine)  # compares its outputs with PyTorch's
    assert [output.shape for output in model.run([1, 0, 2])] == [(3, 8)]


def test_serve_check_serves_the_graph(engine: str):
    result = serve_check(two_inputs(), engine=engine, rate="inf", requests=20, batch=4)
    assert result.settings["engine"] == engine
    assert result.counts.answered == 20
    assert result.precision == "fp32"
    assert any(engine in note for note in result.assumptions)


@pytest.mark.parametrize("kind", ["random", "branch"])
def test_a_model_whose_graph_differs_is_refused(kind: str):
    exporter()
    with pytest.raises(UnsupportedError) as error:
        serve_check(doubtful(kind), engine="onnxruntime", rate="inf", requests=4, batch=2)
    assert {"random": "gives other outputs", "branch": "cannot export branch"}[kind] in error.value.what
    assert error.value.ways_out[0] == "--engine pytorch"


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch):
    from gpuwise.runtime.serving.exported import ExportedModel

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match="onnxruntime is needed to serve") as error:
        ExportedModel(two_inputs(), INFER, batch=1, runtime="onnxruntime")
    assert error.value.ways_out == ('pip install "gpuwise[onnx]"',)


def test_check_refuses_what_has_no_figures():
    with pytest.raises(UnsupportedError, match="in fp32 alone"):
        serve_check(two_inputs(), engine="openvino", precision="bf16")
    with pytest.raises(InputError, match="--input"):
        serve_check(two_inputs(), engine="onnxruntime", input=3)


# The command.


def test_the_command_runs(engine: str, tmp_path: Path):
    from gpuwise.runtime.serving.exporting import export, model_arguments

    job = two_inputs()
    model = TwoInputs().eval()
    one, several = (model_arguments(model, job.loss, job.batch(n)) for n in (1, 2))
    export(model, one, several, tmp_path / FILE, job="two")
    (row,) = serve_plan(job, on=CPU, rate="5/s", batch=4, engine=engine).rows
    result = subprocess.run(["bash", "-c", row.launch], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert "(4, 4)" in result.stdout.replace("[4,4]", "(4, 4)")
