"""Operators of recurrent, recommendation and speech models: what is recorded of them, counted by hand and against the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from benchmarks.memory_on_cpu import Case, compare
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gpuwise.cost.kernels import kernel_times
from gpuwise.cost.kernels.recurrent import of_one_time, over_all_times
from gpuwise.cost.kernels.shapes import Shapes
from gpuwise.cost.parameters import parameters
from gpuwise.errors import JobError
from gpuwise.hardware.catalog import Catalog
from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace import KINDS, Trace
from gpuwise.tracing import record

SAMPLES, TIMES, WIDTH, ROWS = 4, 8, 16, 1000
Part = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Around(nn.Module):
    """A linear layer, and what a test puts behind it."""

    def __init__(self, part: Part, inner: Callable[[], nn.Module]):
        super().__init__()
        self.part, self.inner, self.first = part, inner(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.part(self.inner, self.first(x), index)


def job_of(part: Part, inner: Callable[[], nn.Module] = nn.Identity) -> Job:
    def batch(n: int) -> dict[str, Tensor]:
        return {"x": torch.randn(n, TIMES, WIDTH), "index": torch.randint(0, TIMES, (n, TIMES))}

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["x"], batch["index"]).float().square().mean()

    return Job(lambda: Around(part, inner), batch, loss, optimizer="sgd")


def recorded(job: Job, precision: str = "fp32") -> Trace:
    return record(job, Strategy(precision=precision, micro_batch=SAMPLES))


def rows_of(trace: Trace, name: str) -> list[dict[str, int]]:
    """The numbers of each operator of this name (without overload) that the first micro-batch runs."""
    operations, sequence = trace.operations, trace.sequence
    return [
        {column: int(operations.column(column)[o]) for column in ("flops", "bytes_read", "bytes_written", "kernels", "m")}
        for o, micro_step in zip(sequence.operation, sequence.micro_step, strict=True)
        if operations.name[o].split(".")[1] == name and micro_step == 0
    ]


def kind_of(trace: Trace, name: str) -> str:
    kinds = {KINDS[k] for k, n in zip(trace.operations.kind, trace.operations.name, strict=True) if n.split(".")[1] == name}
    (kind,) = kinds
    return kind


def gathered(_: nn.Module, x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[:, :, None].expand(-1, -1, WIDTH))


def selected(_: nn.Module, x: Tensor, index: Tensor) -> Tensor:
    return x.flatten(0, 1).index_select(0, index.flatten())


def indexed(_: nn.Module, x: Tensor, index: Tensor) -> Tensor:
    return x.flatten(0, 1)[index]


def best(_: nn.Module, x: Tensor, index: Tensor) -> Tensor:
    return x.topk(3, dim=1)[0]


@pytest.mark.parametrize(
    ("part", "operator"), [(gathered, "scatter_add_"), (selected, "index_add_"), (indexed, "index_put_"), (best, "scatter_")]
)
def test_gradients_of_a_selection_are_scattered_in_place(part: Part, operator: str) -> None:
    trace = recorded(job_of(part))
    (row,) = rows_of(trace, operator)
    assert not rows_of(trace, operator.removesuffix("_"))
    numbers = SAMPLES * (3 if operator == "scatter_" else TIMES) * WIDTH  # of the gradient
    assert row["bytes_written"] == 4 * numbers
    assert row["bytes_read"] >= 2 * 4 * numbers


@pytest.mark.parametrize("part", [gathered, selected, indexed, best])
def test_memory_of_a_selection_is_that_of_the_cpu(part: Part) -> None:
    row = compare(Case("selection", job_of(part), Strategy(micro_batch=SAMPLES)))
    assert abs(row.predicted - row.measured) <= 16  # the scalars of the loss; a copy of the buffer would be 2,048 bytes


def test_adding_rows_to_a_large_table_moves_those_rows() -> None:
    def added(_: nn.Module, x: Tensor, index: Tensor) -> Tensor:
        return x.new_zeros(ROWS, WIDTH).index_add_(0, index.flatten(), x.flatten(0, 1))

    (row,) = rows_of(recorded(job_of(added)), "index_add_")
    moved = 4 * SAMPLES * TIMES * WIDTH
    assert (row["bytes_read"], row["bytes_written"]) == (2 * moved + 8 * SAMPLES * TIMES, moved)


def test_a_bag_reads_every_row_that_it_adds_up() -> None:
    trace = recorded(job_of(lambda bag, x, index: x[:, 0] + bag(index), lambda: nn.EmbeddingBag(ROWS, WIDTH, mode="sum")))
    (row,) = rows_of(trace, "_embedding_bag")
    assert row["bytes_read"] >= 4 * SAMPLES * TIMES * WIDTH
    (row,) = rows_of(trace, "_embedding_bag_backward")
    assert kind_of(trace, "_embedding_bag_backward") == "scatter"
    assert (row["m"], row["bytes_written"]) == (SAMPLES * TIMES, 4 * ROWS * WIDTH)


@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused(make: Callable[..., nn.Module]) -> None:
    with pytest.raises(JobError, match=r"sparse=True .* depends on the data"):
        recorded(job_of(lambda table, x, index: table(index), lambda: make(ROWS, WIDTH, sparse=True)))


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16"])
@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_are_all_as_long_as_the_longest(make: Callable[..., nn.Module], precision: str) -> None:
    def packed(layer: nn.Module, x: Tensor, index: Tensor) -> Tensor:
        lengths = index.max(dim=1).values.cpu()
        rows = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(layer(rows)[0], batch_first=True, total_length=TIMES + 2)[0]

    def padded(layer: nn.Module, x: Tensor, index: Tensor) -> Tensor:
        return layer(x)[0]

    first, second = (
        recorded(job_of(part, lambda: make(WIDTH, WIDTH, batch_first=True)), precision) for part in (packed, padded)
    )
    assert _flops(first) == _flops(second)


@pytest.mark.parametrize(("make", "both_ways", "layers"), [(nn.LSTM, False, 1), (nn.GRU, True, 2), (nn.RNN, False, 1)])
def test_packed_sequences_take_on_a_cpu_what_a_real_step_takes(make: Callable[..., nn.Module], both_ways: bool, layers: int):
    width = 48

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, width)
            self.layer = make(width, width, num_layers=layers, bidirectional=both_ways, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            rows = pack_padded_sequence(self.first(x), lengths, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(self.layer(rows)[0], batch_first=True)[0].square().mean()

    def batch(n: int) -> dict[str, Tensor]:
        return {"x": torch.randn(n, 20, WIDTH), "lengths": torch.tensor([20] * (n - 1) + [19])}

    job = Job(Packed, batch, lambda model, batch: model(batch["x"], batch["lengths"]), optimizer="adam")
    row = compare(Case("packed", job, Strategy(micro_batch=8)))
    assert abs(row.error) < 0.001, row  # the lengths themselves are left out


def test_gradients_of_parts_are_added_in_place() -> None:
    def parts(wide: nn.Module, x: Tensor, index: Tensor) -> Tensor:
        hidden = wide(x)
        return sum((hidden[..., at : at + WIDTH].relu() for at in range(0, 4 * WIDTH, WIDTH)), hidden[..., 0, None])

    row = compare(Case("parts", job_of(parts, lambda: nn.Linear(WIDTH, 4 * WIDTH)), Strategy(micro_batch=64)))
    assert abs(row.error) <= 0.00001, row


def _flops(trace: Trace) -> int:
    return int((trace.counts() * trace.operations.column("flops")).sum())


@pytest.mark.parametrize("make", [nn.LSTMCell, nn.GRUCell])
def test_cells_are_two_products_and_a_kernel_over_the_gates(make: Callable[..., nn.Module]) -> None:
    gates = {nn.LSTMCell: 4, nn.GRUCell: 3}[make]  # type: ignore[index]

    def once(cell: nn.Module, x: Tensor, index: Tensor) -> Tensor:
        state = cell(x[:, 0])
        return state if isinstance(state, Tensor) else state[0]

    trace = recorded(job_of(once, lambda: make(WIDTH, WIDTH)), "bf16")
    name = {nn.LSTMCell: "_thnn_fused_lstm_cell", nn.GRUCell: "_thnn_fused_gru_cell"}[make]  # type: ignore[index]
    assert len(rows_of(trace, name)) == 1
    assert kind_of(trace, name) == "elementwise"
    products = [row["flops"] for row in [*rows_of(trace, "mm"), *rows_of(trace, "addmm")]]
    assert products.count(2 * SAMPLES * gates * WIDTH * WIDTH) >= 2


@pytest.mark.parametrize("in_a_row", [False, True])
def test_ctc_keeps_alpha_and_makes_beta(in_a_row: bool) -> None:
    longest = 3

    def spelled(_: nn.Module, x: Tensor, index: Tensor) -> Tensor:
        targets = index[:, :longest] % (WIDTH - 1) + 1
        lengths = [torch.full((len(x),), length) for length in (TIMES, longest)]
        log_p = F.log_softmax(x.transpose(0, 1).float(), dim=-1)
        return F.ctc_loss(log_p, targets.flatten() if in_a_row else targets, *lengths)

    trace = recorded(job_of(spelled), "amp-bf16")
    alpha = 4 * SAMPLES * TIMES * (2 * longest + 1)
    (row,) = rows_of(trace, "_ctc_loss")
    assert row["bytes_written"] == alpha + 4 * SAMPLES
    (position,) = [i for i, name in enumerate(trace.operations.name) if name.startswith("aten._ctc_loss_backward")]
    assert trace.operations.column("workspace_bytes")[position] == alpha


def test_a_recurrent_layer_is_a_product_a_time_step_and_one_over_all() -> None:
    layers, units = 2, 24

    def recurrent(layer: nn.Module, x: Tensor, index: Tensor) -> Tensor:
        return layer(x)[0]

    trace = recorded(job_of(recurrent, lambda: nn.LSTM(WIDTH, units, layers, batch_first=True)))
    operations = trace.operations
    at = [i for i, name in enumerate(operations.name) if name.split(".")[1].startswith("_cudnn_rnn")]
    shapes = Shapes.of(operations).take(np.array(at))
    assert shapes.batch.tolist() == [TIMES * layers] * 2
    assert (shapes.m.tolist(), shapes.n.tolist(), shapes.k.tolist()) == ([SAMPLES] * 2, [4 * units] * 2, [units] * 2)
    rows, step = SAMPLES * TIMES, of_one_time(shapes)
    assert step.flops.tolist() == [2 * SAMPLES * 4 * units * units] * 2
    inputs = 2 * rows * 4 * units * (WIDTH + units)  # of the first layer and the second
    state = layers * 2 * rows * 4 * units * units
    assert over_all_times(shapes).flops.tolist() == [inputs, 2 * inputs + state]


def test_recurrent_layers_are_priced_as_products_and_in_tf32_where_there_is() -> None:
    def recurrent(layer: nn.Module, x: Tensor, index: Tensor) -> Tensor:
        return layer(x)[0]

    trace = recorded(job_of(recurrent, lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True)))
    for chip, figure in (("a100-80gb-sxm", "tf32"), ("v100-sxm2-16gb", "fp32")):  # cuDNN allows TF32 by default
        times = kernel_times(trace, Catalog().chip(chip), parameters())
        names = [name for name in times.names if name.startswith("rnn")]
        assert names == [f"rnn.{figure}", f"rnn_backward.{figure}"]
        rows = np.isin(times.kernel_class, [times.names.index(name) for name in names])
        assert (times.device_s[rows] >= TIMES * 1e-6).all()  # a time step waits for the one before
