"""serve_check on llama.cpp: what it can serve on this machine, and the forecast that serve_plan makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwise.api.devices import Device
from gpuwise.api.engine_model import ASSUMED_BYTES, EngineModel
from gpuwise.api.served_job import served
from gpuwise.api.serving_times import ForecastTimes
from gpuwise.cost.calibration import calibration
from gpuwise.cost.memory.device import outside_bytes
from gpuwise.cost.parameters import parameters
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.notes import Note
from gpuwise.notes import serving as notes
from gpuwise.serving.engine_server import EngineServer, EngineTimes
from gpuwise.serving.engines import engine_of
from gpuwise.serving.formats import GGUF, stored
from gpuwise.serving.step_time import EngineStep
from gpuwise.serving_settings import CheckSettings
from gpuwise.strategy import Strategy
from gpuwise.units import format_bytes

if TYPE_CHECKING:
    from gpuwise.job import Job

ENGINE = "llama.cpp"
WIDE = "AVX512 = 1"  # in what llama.cpp says of its build


def check_llama_cpp(job: Job, device: Device, requested: CheckSettings, *, longest: int) -> None:
    """Raises InputError, UnsupportedError or MissingDependencyError where llama.cpp cannot serve a job as requested.

    longest: most tokens of a request.
    """
    from gpuwise.job.dependencies import require
    from gpuwise.job.job import meta_model

    name = job.name or "the job"
    for package in ("xllamacpp", "gguf"):
        require(package, purpose="serve with llama.cpp")
    if job.generate is None:
        raise InputError(f"{name} does not generate text, which llama.cpp alone serves.", ["leave out --engine", "another job"])
    for setting in ("window", "patience", "precision"):
        if requested.get(setting) is not None:
            way = "--weights, the format of weights" if setting == "precision" else "--engine pytorch"
            raise InputError(f"--engine llama.cpp has no --{setting}.", [f"leave out --{setting}", way])
    if (weights := requested.get("weights")) is not None and not weights.startswith(GGUF):
        raise InputError(
            f"llama.cpp has no weights in {weights}.", ["--weights gguf-q8_0, gguf-q4_k_m or gguf-f16", "no --weights"]
        )
    if device.chip.kind != "cpu":
        raise UnsupportedError(
            f"xllamacpp serves on the processor, and `here` is {device.chip.name}.",
            ["leave out --engine", "a machine without a GPU"],
        )
    from gpuwise.runtime.gguf.architectures import llama_cpp_model

    model = meta_model(job)
    window = llama_cpp_model(model, name=name).window
    if window is not None and window < longest:
        raise UnsupportedError(
            f"{name} has attention over a window of {window:,} tokens, which gpuwise does not write for llama.cpp.",
            ["shorter requests (--input, --output)", "--engine transformers, of hf: models"],
        )
    made_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())  # in fp32, from which its file is written
    capacity = device.cluster.capacity_bytes
    if capacity is not None and made_bytes > capacity:
        raise UnsupportedError(
            f"{name} is made in fp32 before it is written for llama.cpp: {format_bytes(made_bytes)}; this machine has "
            f"{format_bytes(capacity)}.",
            ["a smaller model", "a forecast alone: gpuwise serve-plan JOB --engine llama.cpp, without --profile"],
        )


def llama_cpp_server(
    job: Job, device: Device, requested: CheckSettings, *, slots: int, queue: int | None, longest: int
) -> tuple[ForecastTimes, EngineServer]:
    """The server and the times of its iterations, as serve_plan has them for llama.cpp on this machine.

    longest: most tokens of a request.

    Raises InputError where the slots do not fit, or UnknownNameError.
    """
    engine = engine_of(ENGINE)
    format = engine.format_of(requested.get("weights"))
    assert format is not None  # llama.cpp always has one
    model = EngineModel(served(job), engine, engine.precision, format, None)
    model.check(device)
    generation = model.of(device)
    weights = stored(generation, format)
    policy = engine.policy(
        generation,
        capacity_bytes=device.cluster.capacity_bytes or ASSUMED_BYTES,
        outside_bytes=outside_bytes(device.cluster, parameters()),
        longest=longest,
        weight_bytes=weights.bytes,
        sequences=slots,
        queue=queue,
    )
    if policy.cache_tokens < slots * longest:
        raise InputError(
            f"{slots:,} requests of up to {longest:,} tokens do not fit into this machine's memory beside the weights.",
            ["a smaller --batch", "shorter requests (--input, --output)"],
        )
    policy = replace(policy, cache_tokens=slots * longest)
    step = EngineStep(generation, device.cluster, costs=engine.costs, weights=weights)
    forecast = ForecastTimes(
        times := EngineTimes(step, engine.spread),
        Strategy(precision=engine.precision, mode="infer"),
        any(file.level == "machine" for file in calibration(device.chip).files),
        (*model.notes, *_narrower_build()),
    )
    return forecast, EngineServer(times, policy, format, longest)


def _narrower_build() -> tuple[Note, ...]:
    """Whether the package has no AVX-512 on a processor that has it: those of PyPI are built to run on any processor."""
    import torch
    import xllamacpp

    able = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return (
        (notes.built_for_older_processors(built="AVX2", processor="AVX-512"),)
        if able and WIDE not in xllamacpp.get_system_info()
        else ()
    )
