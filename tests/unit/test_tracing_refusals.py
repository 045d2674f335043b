"""Jobs that cannot be recorded say why; answers made up for data are told."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from tracing_samples import batch_of, mlp_job

from gpuwise.cli.main import main
from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.job.job import meta_model
from gpuwise.strategy import Strategy
from gpuwise.tracing import record
from gpuwise.tracing.answers import Answers


def with_loss(loss: object) -> Job:
    return Job(mlp_job().model, mlp_job().batch, loss)  # type: ignore[arg-type]


def raises(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    raise RuntimeError("the first line\nand a second one")


def test_a_forward_that_raises_is_quoted_by_its_first_line() -> None:
    with pytest.raises(JobError, match=r"RuntimeError: the first line \(at .*test_tracing_refusals\.py:\d+\)\.") as caught:
        record(with_loss(raises), Strategy())
    assert "second" not in str(caught.value)
    assert caught.value.ways_out


def test_shapes_that_do_not_match_are_pytorchs_own_words() -> None:
    with pytest.raises(JobError, match="a step of the job fails"):
        record(Job(mlp_job().model, batch_of(63), mlp_job().loss), Strategy())


@pytest.mark.parametrize(
    ("loss", "operator"),
    [
        (lambda m, b: m(b["x"])[torch.nonzero(b["y"])].sum(), "aten.nonzero"),
        (lambda m, b: m(b["x"])[b["y"] > 2].sum(), "aten.index"),
        (lambda m, b: m(b["x"]).unique().sum(), "aten._unique2"),
        (lambda m, b: m(b["x"]).masked_select(m(b["x"]) > 0).sum(), "aten.masked_select"),
    ],
)
def test_shapes_that_depend_on_data_name_the_operator(loss: object, operator: str) -> None:
    with pytest.raises(JobError, match=operator):
        record(with_loss(loss), Strategy(micro_batch=2))


@pytest.mark.parametrize(
    ("loss", "assumed"),
    [
        (lambda m, b: m(b["x"]).sum() * b["x"].sum().item(), "taken as 1.0"),
        (lambda m, b: m(b["x"]).sum() if (b["x"] > 0).all() else m(b["x"]).mean(), "all() at "),
        (lambda m, b: m(b["x"]).sum() if b["x"].isnan().any() else m(b["x"]).mean(), "taken as False"),
        (lambda m, b: m(b["x"]).sum() if torch.equal(b["x"], b["x"]) else m(b["x"]).mean(), "equal at "),
    ],
)
def test_values_that_are_asked_for_are_assumptions(loss: object, assumed: str) -> None:
    assumptions = record(with_loss(loss), Strategy(micro_batch=2)).header.assumptions
    assert any(assumed in text for text in assumptions), assumptions


def test_a_job_that_asks_nothing_assumes_nothing() -> None:
    assert record(mlp_job(), Strategy()).header.assumptions == ()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (with_loss(lambda m, b: m(b["x"])), "the loss must be a tensor with one number"),
        (with_loss(lambda m, b: m(b["x"]).sum().detach()), "does not depend on any parameter"),
        (Job(mlp_job().model, lambda n: {"x": torch.zeros(3, 64)}, mlp_job().loss), r"batch\(2\) gave .* of shape \(3, 64\)"),
        (Job(mlp_job().model, lambda n: 1 / 0, mlp_job().loss), "batch function raised"),
        (Job(lambda: 3, mlp_job().batch, mlp_job().loss), "must return an nn.Module"),  # type: ignore[arg-type, return-value]
        (Job(lambda: nn.Linear(64, 5).requires_grad_(False), mlp_job().batch, mlp_job().loss), "requires a gradient"),
        (Job(lambda: nn.Linear(64, 1 // 0), mlp_job().batch, mlp_job().loss), "ZeroDivisionError"),
    ],
    ids=["vector", "detached", "batch shape", "batch raises", "no module", "frozen", "model raises"],
)
def test_wrong_jobs(job: Job, message: str) -> None:
    with pytest.raises(JobError, match=message):
        record(job, Strategy(micro_batch=2))


def calls(function: object) -> Job:
    """A job whose loss passes the model's output and its input to a function."""
    return with_loss(lambda m, b: function(m(b["x"]), b["x"]).sum())  # type: ignore[operator]


def builds(function: object) -> Job:
    """A job whose model runs a function while it is built."""

    class Own(nn.Linear):
        def __init__(self) -> None:
            super().__init__(64, 5)
            function(self)  # type: ignore[operator]

    return Job(Own, mlp_job().batch, mlp_job().loss)


def refusal(job: Job) -> JobError:
    """What recording the job raises, which names a line of this file."""
    with pytest.raises(JobError) as caught:
        record(job, Strategy(micro_batch=2))
    assert re.search(r"\(at .*test_tracing_refusals\.py:\d+\)\.$", caught.value.what), caught.value.what
    assert caught.value.ways_out
    return caught.value


@pytest.mark.parametrize(
    ("function", "way"),
    [
        (lambda y, x: y[torch.nonzero(x[:, 0])], "nonzero_static"),
        (lambda y, x: y[torch.where(x[:, 0] > 0)], "nonzero_static"),
        (lambda y, x: y[x[:, 0] > 0], "torch.where"),
        (lambda y, x: y.masked_select(y > 0), "torch.where"),
        (lambda y, x: y.repeat_interleave(torch.ones_like(x[:, 0]).long(), 0), "output_size=N"),
        (lambda y, x: torch.bincount(x[:, 0].long()), "scatter_add_"),
        (lambda y, x: y.unique(), "known size"),
    ],
)
def test_a_shape_that_depends_on_data_is_refused_with_what_to_write(function: object, way: str) -> None:
    error = refusal(calls(function))
    assert "depends on the data" in error.what
    assert way in error.ways_out[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda y, x: y[torch.nonzero_static(x[:, 0], size=2)],
        lambda y, x: torch.where(x[:, :1] > 0, y, 0),
        lambda y, x: y.repeat_interleave(torch.ones_like(x[:, 0]).long(), 0, output_size=2),
        lambda y, x: y.new_zeros(9).scatter_add(0, x[:, 0].long(), y[:, 0]),
    ],
)
def test_what_to_write_is_recorded(function: object) -> None:
    assert record(calls(function), Strategy(micro_batch=2)).header.assumptions == ()


@pytest.mark.parametrize(
    "job",
    [
        calls(lambda y, x: y + torch.zeros(5, device="cuda")),
        calls(lambda y, x: (torch.zeros(5, device="cuda:0"), y)[1]),
        calls(lambda y, x: y + torch.tensor([1.0] * 5, device=torch.device("cuda"))),
        calls(lambda y, x: y + x.new_zeros(5, device="cuda")),
        calls(lambda y, x: y.cuda()),
        calls(lambda y, x: y.to("cuda:0")),
        builds(lambda model: model.cuda()),
        builds(lambda model: model.register_buffer("scale", torch.ones(5).cuda())),
        Job(mlp_job().model, lambda n: {"x": torch.zeros(n, 64).cuda(), "y": torch.zeros(n).long()}, mlp_job().loss),
    ],
    ids=["factory", "unused", "tensor", "new_zeros", "cuda()", "to", "module", "buffer", "batch"],
)
def test_a_job_that_asks_for_cuda_itself_is_told_what_to_write(job: Job) -> None:
    error = refusal(job)
    assert "asks for a CUDA device itself" in error.what
    assert "x.new_zeros" in error.ways_out[0]


def test_own_autocast_for_cuda_is_that_of_the_virtual_device() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return model(batch["x"]).float().sum()

    trace = record(with_loss(loss), Strategy(micro_batch=2))
    products = [dtype for name, dtype in zip(trace.operations.name, trace.operations.dtype, strict=True) if "mm" in name]
    assert set(products) == {"bfloat16"}


def test_work_on_the_cpu_is_an_assumption() -> None:
    trace = record(calls(lambda y, x: y + y.detach().cpu().sum().to(y.device)), Strategy(micro_batch=2))
    assert any("copied to the CPU at" in text and "not priced" in text for text in trace.header.assumptions)
    assert refusal(calls(lambda y, x: y + y.cpu())).what.startswith("a tensor on the CPU meets one on the device")


def test_a_numpy_array_is_refused() -> None:
    for function in (lambda y, x: y * x.numpy().sum(), lambda y, x: y * x.detach().cpu().numpy().sum()):
        assert "NumPy array" in refusal(calls(function)).what


@pytest.mark.parametrize(
    "function",
    [
        lambda y, x: y * x.sum().item(),
        lambda y, x: y * x[:, 0].tolist()[0],
        lambda y, x: y if x.sum() > 0 else -y,
        lambda y, x: y * len(range(int(x.sum()))),
    ],
)
def test_values_asked_for_are_named_with_their_line(function: object) -> None:
    (text,) = record(calls(function), Strategy(micro_batch=2)).header.assumptions
    assert re.search(r"value \(.item\(\), .*\) at .*test_tracing_refusals\.py:\d+ is data .* taken as", text)


def test_values_read_while_the_model_is_built_are_refused() -> None:
    assert "while it is built" in refusal(builds(lambda model: torch.linspace(0, 1, 3)[1].item())).what
    record(builds(lambda model: torch.linspace(0, 1, 3, device="cpu")[1].item()), Strategy(micro_batch=2))


def test_an_operator_without_a_shape_rule_is_named_with_the_rule_to_write() -> None:
    library = torch.library.Library("gpuwise_test", "DEF")
    library.define("opaque(Tensor x) -> Tensor")
    library.impl("opaque", lambda x: x.clone(), "CPU")
    error = refusal(calls(lambda y, x: torch.ops.gpuwise_test.opaque(x) @ y.new_zeros(64)))
    assert "gpuwise_test.opaque" in error.what
    assert 'register_fake("gpuwise_test::opaque") before def _(x)' in error.ways_out[0]
    assert "aten._pin_memory" in refusal(Job(mlp_job().model, lambda n: torch.zeros(n, 64).pin_memory(), mlp_job().loss)).what


def test_a_custom_operator_without_a_shape_rule_is_named_and_with_one_recorded() -> None:
    @torch.library.custom_op("gpuwise_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    job = calls(lambda y, x: y + twice(y.detach()))
    error = refusal(job)
    assert "gpuwise_test::twice has no shape rule" in error.what
    assert 'register_fake("gpuwise_test::twice") before def _(x)' in error.ways_out[0]
    torch.library.register_fake("gpuwise_test::twice")(lambda x: x.new_empty(x.shape))
    assert any("twice" in name for name in record(job, Strategy(micro_batch=2)).operations.name)


def extension_with_checks(y: Tensor, x: Tensor) -> Tensor:
    raise RuntimeError("input must be a CUDA tensor")  # as TORCH_CHECK(input.is_cuda(), ...) in an extension


@pytest.mark.parametrize(
    "function",
    [
        lambda y, x: (y.data_ptr(), y)[1],  # as compiled extensions and Triton's launcher do
        lambda y, x: y.detach().__cuda_array_interface__,
        extension_with_checks,
    ],
)
def test_a_kernel_outside_of_pytorch_is_refused_with_how_to_wrap_it(function: object) -> None:
    error = refusal(calls(function))
    assert "needs real memory" in error.what
    assert "custom_op" in error.ways_out[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("y[x[:, 0] > 0]", "aten.index.Tensor gives a result whose shape depends on the data"),
        ("y.cuda()", "asks for a CUDA device itself"),
        ("y.detach().numpy()", "NumPy array"),
    ],
)
def test_the_command_line_names_file_and_line_without_a_traceback(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(FILE.format(line=line))
    done = CliRunner().invoke(main, ["forecast", "train.py:job", "--on", "t4", "--micro-batch", "2"])
    assert done.exit_code == 2
    assert said in done.stderr
    assert "(at train.py:8)" in done.stderr
    assert "Traceback" not in done.output


FILE = """import torch
from gpuwise import Job


def loss(model, batch):
    x = batch["x"]
    y = model(x)
    y = {line}
    return y.sum()


job = Job(lambda: torch.nn.Linear(4, 2), lambda n: {{"x": torch.zeros(n, 4)}}, loss)
"""


def test_what_lay_in_memory_before_does_not_answer_for_what_lies_there_now() -> None:
    answers, value, asks = Answers(), torch.zeros(()), torch.ops.aten._local_scalar_dense.default
    answers.remember(torch.ops.aten.any.default, value)
    assert answers.answer(asks, (value,)) is False
    answers.remember(torch.ops.aten.add.Tensor, value)  # the same address, as after a free
    assert answers.answer(asks, (value,)) == 1.0


class DropsLayers(nn.Module):
    """LayerDrop, as Transformers' Wav2Vec2 and Whisper have it: each step leaves layers out by chance."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])
        self.probability = probability

    def forward(self, x):
        for layer in self.layers:
            if not torch.rand([]) < self.probability:
                x = layer(x)
        return x


@pytest.mark.parametrize(("probability", "layers"), [(0.0, 4), (0.1, 4), (0.9, 0)])
def test_a_number_that_is_drawn_and_compared_is_its_middle(probability: float, layers: int) -> None:
    job = Job(lambda: DropsLayers(probability), lambda n: torch.randn(n, 16), lambda model, x: model(x).sum())
    trace = record(job, Strategy(micro_batch=2, mode="infer"))
    assert trace.model_flops == layers * 2 * 2 * 16 * 16
    (text,) = (note.text for note in trace.header.assumption_notes if "rand()" in note.text)
    assert f"rand() < {probability:g} " in text
    assert text.endswith(f"taken as {not layers}")


def test_a_job_that_moves_itself_to_the_cpu_is_told_to_leave_it():
    """device = "cuda" if torch.cuda.is_available() else "cpu" is the CPU where a forecast is made."""
    for moves in (builds(lambda model: model.to("cpu")), calls(lambda y, x: y + x[:, :5].to("cpu"))):
        error = refusal(moves)
        assert "leave .to(device)" in error.ways_out[0], error.what
    with pytest.raises(JobError, match="moves its model or tensors to a device itself"):
        meta_model(builds(lambda model: model.to("cpu")))


def test_a_product_of_operands_on_two_devices_names_the_devices_and_not_their_types():
    job = with_loss(lambda m, b: m(b["x"].to("cpu")).sum())
    with pytest.raises(JobError, match="a tensor on the CPU meets one on the device"):
        record(job, Strategy(micro_batch=2, precision="amp-bf16"))


def in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return model


def its_forward(model: nn.Module) -> nn.Module:
    model.forward = torch.compile(model.forward)
    return model


@pytest.mark.parametrize("compiled", [torch.compile, in_place, its_forward])
@pytest.mark.parametrize("stance", ["default", "force_eager"])
def test_a_model_that_compiles_itself_is_sent_to_the_flag(compiled: Callable[[nn.Module], nn.Module], stance: str) -> None:
    """Where nothing is compiled, too: torchao's updates are recorded so."""
    job = Job(lambda: compiled(mlp_job().model()), mlp_job().batch, mlp_job().loss)
    with torch.compiler.set_stance(stance), pytest.raises(JobError, match="compiles its model itself") as caught:
        record(job, Strategy(micro_batch=2))
    assert "--compile" in caught.value.ways_out[0]


def test_flex_attention_and_nested_tensors_have_ways_out():
    def flex(y: Tensor, x: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(*(x.view(x.shape[0], 1, 4, 16) for _ in range(3)))

    def nested(y: Tensor, x: Tensor) -> Tensor:
        return torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged).to_padded_tensor(0.0)

    assert "FlexAttention" in refusal(calls(flex)).what
    assert "nested tensors" in refusal(calls(nested)).what
