"""The settings of serve_plan that only one kind of job has: one that writes text, or one that answers in a forward pass."""

from __future__ import annotations

from gpuwise.api.serving_limits import limit_words
from gpuwise.errors import InputError
from gpuwise.serving.graph_engines import graph_engine_of, graph_engines
from gpuwise.serving_settings import ArrivalSettings, ForwardSettings, ModeSettings, ServingSettings
from gpuwise.step_settings import flag_of, settings_of
from gpuwise.units import parse_duration

PYTORCH = "pytorch"
MOST_BATCH = 100_000
# Settings of jobs that write text, by what a job of forward passes has in their place.
_OF_TEXT = {
    "output": "--seq-len or --image-size, the sizes of a sample",
    "prefix_hits": "",
    "weights": "--precision, the number formats of a pass",
    "cache": "--precision, the number formats of a pass",
    "api_price": "--budget, dollars a month",
    **dict.fromkeys((*settings_of(ArrivalSettings), *settings_of(ModeSettings)), ""),
}
# Settings of forward passes, by what jobs that write text have in their place.
_OF_PASSES = {
    "seq_len": "--input and --output, mean tokens of prompts and answers",
    "batch": "--on and --rate: an engine's batches are as large as its memory lets them be",
    "window": "--on and --rate: an engine lets requests join at every iteration",
}
_OF_BOTH = {"slo", "precision", "engine", "budget", "profile", "input", "spread"}
_TEXT_JOB = "a job that writes text says Job(generate=...)"
_PASS_JOB = "a job without generate=..., for its forward pass alone"


def check_writes_text(requested: ServingSettings, *, job: str) -> None:
    """Raises InputError for a setting of forward passes."""
    for name in settings_of(ForwardSettings):
        if requested.get(name) is not None:
            flag = flag_of(name)
            ways = [f"leave out {flag}", *([_OF_PASSES[name]] if name in _OF_PASSES else [])]
            raise InputError(f"{flag} is of models that answer in one forward pass, and {job} writes text.", ways)
    check_engine_writes_text(requested.get("engine"), job=job, others="--engine vllm or llama.cpp, which do")


def check_engine_writes_text(engine: str | None, *, job: str, others: str) -> None:
    """Raises InputError for an engine of forward passes. others: the engines to name in its place."""
    if engine == PYTORCH or graph_engine_of(engine) is not None:
        raise InputError(
            f"{engine} runs single forward passes here, and {job} writes text, token by token from a cache.",
            [others, _PASS_JOB],
        )


def check_answers_in_one_pass(requested: ServingSettings, *, job: str) -> None:
    """Raises InputError for a setting of jobs that write text."""
    why = f"is of models that write text, and a request of {job} is one forward pass."
    for name, instead in _OF_TEXT.items():
        if requested.get(name) is not None:
            raise InputError(f"{flag_of(name)} {why}", [instead or f"leave out {flag_of(name)}", _TEXT_JOB])
    for name in settings_of(ServingSettings):
        if requested.get(name) is not None and name not in _OF_BOTH | settings_of(ForwardSettings).keys():
            raise InputError(f"{flag_of(name)} has no meaning yet for a request that is one forward pass.", [_TEXT_JOB])
    engine = requested.get("engine")
    if engine not in (None, PYTORCH, *graph_engines()):
        raise InputError(f"--engine {engine} {why}", [f"--engine {', '.join([PYTORCH, *graph_engines()])}", _TEXT_JOB])
    for name in ("compile", "channels_last") if graph_engine_of(engine) else ():
        if requested.get(name):
            raise InputError(
                f"{flag_of(name)} is of plain PyTorch; {engine} chooses its own kernels and layouts.",
                [f"leave out {flag_of(name)}", f"--engine {PYTORCH}"],
            )
    for name, _ in limit_words(requested.get("slo") or ""):
        if name in ("ttft", "tpot"):
            raise InputError(f"a limit of {name} {why}", ["--slo latency=50ms", _TEXT_JOB])


def batch_of(requested: ServingSettings) -> int | None:
    """Most requests of a pass; None where they are searched for."""
    batch = requested.get("batch")
    if batch is None:
        return None
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= MOST_BATCH:
        raise InputError(f"--batch must be a whole number from 1 to {MOST_BATCH:,}, got {batch!r}.")
    return batch


def window_s_of(requested: ServingSettings) -> float:
    """Seconds that an idle server waits for a batch to fill."""
    window = requested.get("window")
    return 0.0 if window in (None, "0") else parse_duration(str(window))
