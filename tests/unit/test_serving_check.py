"""The real server against the simulated one, on a clock that only moves when somebody waits; and serve_check as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Event

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from gpuwise.api.serving_check import serve_check
from gpuwise.api.serving_load import check_plan
from gpuwise.api.serving_run import compared
from gpuwise.cli.main import main
from gpuwise.cost.forecast import Interval
from gpuwise.errors import InputError, JobError
from gpuwise.job import Job
from gpuwise.job.models.generation import generate
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.report.printed import as_text
from gpuwise.runtime.serving.clients import Clients, run_clients
from gpuwise.runtime.serving.models import GeneratingModel, collated
from gpuwise.runtime.serving.server import LoadReplay, new_outcomes, replay, replay_of, serve_line
from gpuwise.runtime.serving.waiting_line import WaitingLine
from gpuwise.serving.group_server import GroupServer
from gpuwise.serving.pass_times import ForwardTimes, GenerationTimes, PackedTimes, sizes_up_to
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.served import Served, capacity_of
from gpuwise.serving.windowed import GroupTime, WindowPolicy, serve_groups
from gpuwise.strategy import Strategy

TICK_S = 2.0**-10  # times are multiples of it, so that sums of them are exact


class StillClock:
    """Moves to what the clients do next, or to the end of a wait."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.clients: Clients | None = None

    def now_s(self) -> float:
        return self.time_s

    def wait(self, changed: Condition, seconds: float) -> bool:
        assert self.clients is not None
        until_s = self.time_s + seconds
        due_s = self.clients.next_s()
        assert np.isfinite(min(due_s, until_s)), "the server waits for nobody"
        self.time_s = max(self.time_s, min(due_s, until_s))
        if due_s <= until_s:
            self.clients.act(self.time_s)
        return due_s <= until_s

    def run_to(self, until_s: float) -> None:
        assert self.clients is not None
        while (due_s := self.clients.next_s()) <= until_s:
            self.time_s = max(self.time_s, due_s)
            self.clients.act(self.time_s)
        self.time_s = until_s


@dataclass
class TimedModel:
    """A model that takes the times of a simulation."""

    group_s: GroupTime
    clock: StillClock

    def answer(self, group: Sequence[int], first: Callable[[int], None], last: Callable[[int], None]) -> None:
        start_s = self.clock.now_s()
        firsts, ends = (np.broadcast_to(seconds, len(group)) for seconds in self.group_s(group))
        tokens = [
            (start_s + at, kind, request)
            for kind, ats in enumerate((firsts, ends))
            for at, request in zip(ats, group, strict=True)
        ]
        for at, kind, request in sorted(tokens):
            self.clock.run_to(at)
            (first, last)[kind](request)


def served_on_a_still_clock(load: Requests, group_s: GroupTime, policy: WindowPolicy) -> LoadReplay:
    clock = StillClock()
    line = WaitingLine(policy, clock)
    clock.clients = Clients(load, line, patience_s=policy.patience_s)
    outcomes = new_outcomes(load, clock)
    serve_line(line, TimedModel(group_s, clock), clock, outcomes)
    return replay_of(load, outcomes, clock.clients)


def ticks(rng: np.random.Generator, most: int, count: int | None = None):
    return TICK_S * rng.integers(1, most, count)


@pytest.mark.parametrize("seed", range(60))
def test_the_server_forms_the_batches_of_the_simulation(seed: int):
    rng = np.random.default_rng(seed)
    count = 150
    arrival_s = np.cumsum(TICK_S * rng.integers(0, rng.choice([4, 20, 60]), count))
    load = requests(arrival_s, rng.integers(1, 40, count), rng.integers(1, 9, count))
    window_s = float(rng.choice([0.0, 5 * TICK_S, 40 * TICK_S]))
    policy = WindowPolicy(
        batch=int(rng.integers(1, 9)),
        window_s=window_s,
        queue=rng.choice([None, 1, 3, 20]),
        patience_s=float(rng.choice([np.inf, window_s + 30 * TICK_S, window_s + 200 * TICK_S])),
    )
    base_s, each_s = ticks(rng, 40), ticks(rng, 8)
    generates = bool(rng.integers(2))
    groups: list[tuple[int, ...]] = []

    def group_s(group: Sequence[int]):
        groups.append(tuple(group))
        first_s = base_s + each_s * len(group)
        return first_s, first_s + generates * each_s * (load.output_tokens[list(group)] - 1)

    simulated = serve_groups(load, group_s, policy)
    expected, groups = groups, []
    real = served_on_a_still_clock(load, group_s, policy)
    assert [group for group, _ in real.groups] == expected
    np.testing.assert_array_equal(real.served.first_token_s, simulated.first_token_s)
    np.testing.assert_array_equal(real.served.end_s, simulated.end_s)
    assert len(real.turned_away) + len(real.left) == simulated.turned_away
    assert real.served.busy_s == simulated.busy_s
    assert real.late_s == 0
    assert real.ended.all()


def test_a_full_queue_turns_away_and_clients_leave():
    """Ten at once, one a second: one runs, two wait, of which one leaves after 1.5 s, and seven are turned away."""
    load = requests(np.zeros(10), np.ones(10, np.int64), np.ones(10, np.int64))
    policy = WindowPolicy(1, queue=2, patience_s=1.5)
    # The first one is taken when it arrives, before the others, which arrive at the same instant, are received.
    result = served_on_a_still_clock(load, lambda group: (1.0, 1.0), policy)
    assert len(result.turned_away) == 7
    assert result.left == (2,)
    assert result.served.end_s[:2].tolist() == [1.0, 2.0]
    assert serve_groups(load, lambda group: (1.0, 1.0), policy).turned_away == 8


def test_ctrl_c_keeps_what_had_ended():
    class Interrupted:
        def answer(self, group: Sequence[int], first: Callable[[int], None], last: Callable[[int], None]) -> None:
            if 6 in group:
                first(6)
                raise KeyboardInterrupt
            for request in group:
                first(request)
                last(request)

    load = requests(np.zeros(40), np.ones(40, np.int64), np.ones(40, np.int64))
    result = replay(load, Interrupted(), WindowPolicy(1))
    assert result.interrupted
    assert result.ended.tolist() == [True] * 6 + [False] * 34
    assert np.isnan(result.served.first_token_s[6])


def test_clients_stop_in_the_middle_of_a_load():
    stop, line = Event(), WaitingLine(WindowPolicy(1), StillClock())
    clients = Clients(requests(np.array([0.0, 1e6]), np.ones(2, np.int64), np.ones(2, np.int64)), line)
    stop.set()
    run_clients(clients, StillClock(), stop)
    assert clients.next_s() == 0.0


def exactly(seconds: float) -> Interval:
    return Interval(seconds, seconds / 2, seconds * 3)


def test_times_of_forward_passes_are_linear_in_between():
    times = ForwardTimes({1: exactly(1.0), 2: exactly(1.5), 4: exactly(2.0)})
    assert [times.pass_s(size) for size in (1, 2, 3, 4)] == [1.0, 1.5, 1.75, 2.0]
    assert times.spread == (0.5, 3.0)


def test_times_of_generation_are_those_of_its_passes():
    """Against a loop over passes."""
    rng = np.random.default_rng(0)
    load = requests(np.zeros(6), np.full(6, 11), rng.integers(1, 30, 6))

    def reading(n: int, tokens: int) -> float:
        return 0.1 * n + 0.01 * tokens

    def writing(n: int, past: int) -> float:
        return 0.2 + 0.03 * n + 0.002 * past

    points = (1, 2, 4, 64)
    times = GenerationTimes(
        {n: {tokens: exactly(reading(n, tokens)) for tokens in points} for n in (1, 4)},
        {n: {tokens: exactly(writing(n, tokens)) for tokens in points} for n in (1, 4)},
    )
    first_s, end_s = times.group_s(load)([0, 2, 5])
    assert first_s == pytest.approx(reading(3, 11))
    for request, seconds in zip([0, 2, 5], end_s, strict=True):
        passes = [writing(3, 11 + written) for written in range(load.output_tokens[request] - 1)]
        assert seconds == pytest.approx(reading(3, 11) + sum(passes))


def test_times_of_packed_iterations_count_all_new_and_all_cached_tokens():
    def seconds(new: int, past: int) -> float:
        return 0.3 + 0.02 * new + 0.001 * past

    times = PackedTimes({new: {past: exactly(seconds(new, past)) for past in (0, 64, 1000)} for new in (1, 4, 256)})
    assert times([(7, 0), (20, 100)], 5, 300) == pytest.approx(seconds(7 + 20 + 5, 100 + 300))
    assert times((), 1, 0) == pytest.approx(seconds(1, 0))


def test_sizes_up_to():
    assert sizes_up_to(1) == [1]
    assert sizes_up_to(8) == [1, 2, 4, 8]
    assert sizes_up_to(100, least=16) == [1, 16, 32, 64, 100]
    assert sizes_up_to(3, least=16) == [1, 3]


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_capacity_is_full_batches_over_their_time(batch: int):
    load = requests(np.zeros(1000), np.ones(1000, np.int64), np.ones(1000, np.int64))
    server = GroupServer(ForwardTimes({1: exactly(1.0), 8: exactly(1.0)}), WindowPolicy(batch))
    assert capacity_of(server.served(load)) == pytest.approx(batch, rel=0.02)
    assert capacity_of(server.served(load, factor=2.0)) == pytest.approx(batch / 2, rel=0.02)


def test_a_batch_is_collated_from_its_requests():
    @dataclass(frozen=True)
    class Words:
        ids: torch.Tensor
        mask: torch.Tensor

    samples = [{"x": torch.full((1, 2), i), "words": Words(torch.tensor([[i]]), torch.ones(1, 3))} for i in range(3)]
    batch = collated(samples)
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["words"].ids.tolist() == [[0], [1], [2]]
    assert batch["words"].mask.shape == (3, 3)


def small_job(**changes: object) -> Job:
    config = LlamaConfig(vocabulary=64, width=32, layers=2, heads=4, kv_heads=2, hidden=64)
    return Job(
        lambda: Llama(config),
        lambda n: {"tokens": torch.zeros(n, 8, dtype=torch.long)},
        lambda model, batch: model(batch["tokens"]).mean(),
        **{"generate": generate, "name": "small", "context_length": 64, **changes},
    )


def test_generation_reads_the_prompts_then_writes_a_token_a_pass():
    passes: list[tuple[tuple[int, ...], list[int]]] = []

    def recorded(model: torch.nn.Module, tokens: torch.Tensor, cache: object):
        logits, cache = generate(model, tokens, cache)
        passes.append((tuple(tokens.shape), logits.argmax(-1).tolist()))
        return logits, cache

    load = requests(np.zeros(2), np.full(2, 5), np.array([2, 4]))
    model = GeneratingModel(small_job(generate=recorded), Strategy("fp32", mode="infer"), torch.device("cpu"), load, batch=2)
    passes.clear()
    ended: list[tuple[str, int, int]] = []
    model.answer(
        [0, 1],
        lambda request: ended.append(("first", request, len(passes))),
        lambda request: ended.append(("last", request, len(passes))),
    )
    assert [shape for shape, _ in passes] == [(2, 5), (2, 1), (2, 1), (2, 1)]
    assert ended == [("first", 0, 1), ("first", 1, 1), ("last", 0, 2), ("last", 1, 4)]
    # The tokens are those of a model that reads everything again each time.
    module, tokens = model._program.model, torch.zeros(2, 5, dtype=torch.long)
    for _, written in passes:
        with torch.no_grad():
            following = module(tokens)[:, -1].argmax(-1, keepdim=True)
        assert following.flatten().tolist() == written
        tokens = torch.cat([tokens, following], dim=1)


@pytest.mark.parametrize("tokens_with_logits", [1, 3])
def test_logits_of_more_tokens_than_the_last_are_read_at_the_last(tokens_with_logits: int):
    shapes: list[tuple[int, ...]] = []

    def of_all(model: torch.nn.Module, tokens: torch.Tensor, cache: object):
        shapes.append(tuple(tokens.shape))
        logits, cache = generate(model, tokens, cache)
        return logits[:, None].expand(-1, tokens_with_logits, -1), cache

    load = requests(np.zeros(2), np.full(2, 5), np.array([3, 3]))
    model = GeneratingModel(small_job(generate=of_all), Strategy("fp32", mode="infer"), torch.device("cpu"), load, batch=2)
    shapes.clear()
    model.answer([0, 1], lambda request: None, lambda request: None)
    assert shapes == [(2, 5), (2, 1), (2, 1)]


def test_a_generating_job_is_served_and_compared():
    result = serve_check(small_job(), rate="inf", requests=6, input=8, output=4, slo="ttft=10s", saturate=True)
    assert result.counts.answered == result.counts.forecast_answered == 6
    assert set(result.latency) == {"ttft_s", "tpot_s", "latency_s"}
    assert result.capacity.measured is not None
    assert [(group.requests, group.count) for group in result.groups] == [(1, 6)]
    text = as_text(result)
    assert "first token p50" in text
    assert "inside the limits" in text
    json.dumps(result.to_dict(), allow_nan=False)


def test_prompts_of_one_length_run_together():
    result = serve_check(small_job(), rate="inf", requests=8, input=8, output=3, batch=4)
    assert [(group.requests, group.count) for group in result.groups][-1][0] == 4


def test_an_interrupted_check_compares_what_had_ended():
    plan = check_plan(small_job(), rate="inf", requests=10, input=8, output=4)
    served = plan.server.served(plan.load)
    end_s = np.where(np.arange(10) < 4, served.end_s, np.nan)
    early = LoadReplay(
        served=type(served)(plan.load, np.where(np.isnan(end_s), np.nan, served.first_token_s), end_s, 4, float(end_s[3])),
        groups=tuple(((i,), 0.1) for i in range(4)),
        interrupted=True,
    )
    result = compared(plan, early, None)
    assert result.interrupted
    assert (result.counts.sent, result.counts.answered) == (4, 4)
    # The measured times are those of the forecast, which is of the same four requests.
    assert all(figure.error == pytest.approx(0) for figures in result.latency.values() for figure in figures.values())
    assert any("interrupted" in line for line in result.remarks)


def test_a_check_that_is_interrupted_at_once_has_no_figures():
    plan = check_plan(small_job(), rate="inf", requests=10, input=8, output=4)
    nothing = np.full(10, np.nan)
    result = compared(plan, LoadReplay(Served(plan.load, nothing, nothing, 0, 0.0), interrupted=True), None)
    assert (result.counts.sent, result.latency) == (0, {})
    assert "interrupted" in as_text(result)
    assert "0 of 0" in repr(result)
    json.dumps(result.to_dict(), allow_nan=False)


def test_overload_is_said():
    plan = check_plan(small_job(), rate="1M/s", requests=10, input=8, output=4)
    result = compared(plan, LoadReplay(plan.server.served(plan.load)), None)
    assert any("above" in line for line in result.remarks)


def test_the_command_serves_a_model_without_a_cache(tmp_path: Path):
    command = ["serve-check", "tabular-mlp", "--rate", "inf", "--requests", "12", "--batch", "4", "--json"]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["counts"]["answered"] == 12
    assert data["rate_per_s"] is None
    assert sum(group["requests"] * group["count"] for group in data["groups"]) == 12
    assert set(data["latency"]["latency_s"]) == {"p50", "p90", "p99"}


@pytest.fixture
def hub_folder(tmp_path: Path) -> str:
    """A configuration of Transformers' Llama, as hf: takes it."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes, **heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return f"hf:{tmp_path}"


def test_continuous_batching_of_transformers(hub_folder: str):
    pytest.importorskip("transformers")
    device_module, available = torch.get_device_module, torch.accelerator.is_available
    result = serve_check(hub_folder, engine="transformers", rate="inf", requests=6, input=8, output=4, batch=4)
    assert result.counts.answered == result.counts.forecast_answered == 6
    assert set(result.latency) == {"ttft_s", "tpot_s", "latency_s"}
    assert result.groups == ()
    assert result.to_dict()["utilisation"]["measured"] is None
    assert (torch.get_device_module, torch.accelerator.is_available) == (device_module, available)
    with pytest.raises(InputError, match="no --queue"):
        check_plan(hub_folder, engine="transformers", queue=5)


def test_continuous_batching_is_of_models_of_transformers():
    with pytest.raises(InputError, match="no model of Transformers"):
        check_plan(small_job(), engine="transformers")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch": 4, "spread": 1.0}, "one length"),
        ({"batch": 0}, "batch"),
        ({"requests": 10**9}, "requests"),
        ({"window": "2s", "patience": "1s"}, "longer than the window"),
        ({"duration": "1ms", "rate": "1/min"}, "no request arrives"),
        ({"rate": "1/h"}, "the 20 requests of a check take"),
        ({"duration": "10h", "rate": "1k/s"}, "at most"),
        ({"slo": "latency=0.001ms", "spread": 0.0}, "no rate stays"),
        ({"rate": "quickly"}, "rate"),
        ({"input": 0}, "input"),
        ({"rate": "inf", "duration": "5s"}, "no --duration"),
        ({"rate": "10/s", "requests": 20, "duration": "5s"}, "in place of --requests"),
        ({"input": 60, "output": 60}, "context"),
    ],
)
def test_bad_settings(settings: dict[str, object], words: str):
    with pytest.raises(InputError, match=words):
        check_plan(small_job(), **settings)


def test_lengths_are_of_jobs_that_generate():
    with pytest.raises(InputError, match="--output is of jobs that generate"):
        check_plan(small_job(generate=None), output=5)


def test_what_the_model_raises_is_named():
    def broken(model: torch.nn.Module, tokens: torch.Tensor, cache: object):
        if not torch._guards.detect_fake_mode():
            raise ValueError("no weights today")
        return generate(model, tokens, cache)

    with pytest.raises(JobError, match="no weights today"):
        serve_check(small_job(generate=broken), rate="inf", requests=2, input=8, output=2)


def test_all_at_once_keeps_the_requests():
    load = requests(np.array([1.0, 2.0]), np.array([3, 4]), np.array([5, 6]))
    assert load.all_at_once().arrival_s.tolist() == [0, 0]
    assert load.all_at_once().input_tokens.tolist() == [3, 4]
