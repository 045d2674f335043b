"""serve_plan --profile: passes of this machine, timed by the servers of serve_check before anything is planned with them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from gpuwise.api.devices import Device, device_of
from gpuwise.api.forward_passes import DevicePasses
from gpuwise.api.serving_llama_cpp import ENGINE as LLAMA_CPP
from gpuwise.api.serving_llama_cpp import check_llama_cpp, llama_cpp_server
from gpuwise.api.serving_times import ON
from gpuwise.api.trial import torch_device
from gpuwise.errors import InputError
from gpuwise.hardware.catalog import Catalog
from gpuwise.serving.engines import Engine
from gpuwise.serving.graph_engines import GraphEngine
from gpuwise.serving.group_server import COUNT
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.profile import PassProfile
from gpuwise.serving.requests import Requests
from gpuwise.serving.windowed import WindowPolicy
from gpuwise.serving_settings import CheckSettings, ModeSettings, ServingSettings
from gpuwise.step_settings import flag_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwise.job import Job

HERE = "here"
BEYOND_PROMPT = 64  # tokens of a request that is timed, after the longest prompt


def check_profiles_here(names: Sequence[str], catalog: Catalog) -> None:
    """Raises InputError where this machine, whose passes --profile times, is not among the devices."""
    if not any(device_of(name, catalog).spec.machine is not None for name in names):
        raise InputError(
            "--profile times the model's passes on this machine, which is not among the devices.",
            [f"--on {','.join((HERE, *names))}", "leave out --profile"],
        )


def forward_profile(
    job: Job, passes: DevicePasses, device: Device, *, engine: GraphEngine | None, load: Requests, rate_per_s: float
) -> PassProfile:
    """Each forward pass that is forecast, as serve_check's server takes it on this machine.

    rate_per_s: of the requests, which says how long the server is idle between them.

    Raises JobError for errors of the job's own code, UnsupportedError or MissingDependencyError.
    """
    from gpuwise.runtime.serving.exported import ExportedModel
    from gpuwise.runtime.serving.models import ForwardModel
    from gpuwise.runtime.serving.server import replay
    from gpuwise.runtime.serving.timing import time_groups
    from gpuwise.runtime.serving.waiting_line import RealClock

    most = max(passes.forecasts)
    strategy = passes.forecasts[most].strategy

    def timed() -> PassProfile:
        import torch

        on = torch.device(torch_device(device.chip))
        model = (
            ForwardModel(job, strategy, on, batch=most)
            if engine is None
            else ExportedModel(job, strategy, batch=most, runtime=engine.name)
        )
        alone = partial(replay, policy=WindowPolicy(1))
        return time_groups(model, passes.forecast_times, load, alone, RealClock(), idle_s=1 / rate_per_s)

    return _of_job(job, timed, part=job.loss)


def text_profile(job: Job, engine: Engine, requested: ServingSettings, shape: LoadShape, catalog: Catalog) -> PassProfile:
    """Iterations of llama.cpp over prompts and tokens of several requests, as its server takes them on this machine.

    Raises InputError or UnsupportedError for another engine or another way of serving, MissingDependencyError, or JobError.
    """
    if engine.name != LLAMA_CPP:
        raise InputError(
            f"--profile times llama.cpp, and {engine.name} does not run inside of gpuwise.",
            [f"--engine {LLAMA_CPP}", "leave out --profile"],
        )
    for name in settings_of(ModeSettings):
        if requested.get(name) is not None:
            flag = flag_of(name)
            raise InputError(
                f"--profile times the whole model on the processor, without {flag}.", [f"leave out {flag}", "no --profile"]
            )
    device, named = (
        device_of(ON, catalog),
        CheckSettings(weights=requested.get("weights"), precision=requested.get("precision")),
    )
    load = shape.at(1.0, count=COUNT)
    longest = min(int(load.input_tokens.max()), engine.batched_tokens) + BEYOND_PROMPT
    check_llama_cpp(job, device, named, longest=longest)
    _, server = llama_cpp_server(job, device, named, slots=engine.sequences, queue=None, longest=longest)

    def timed() -> PassProfile:
        import torch

        from gpuwise.runtime.serving.llama_cpp import LlamaCppEngine
        from gpuwise.runtime.serving.timing import time_engine
        from gpuwise.runtime.serving.waiting_line import RealClock

        policy, threads, mix = server.policy, torch.get_num_threads(), server.format.mix
        with LlamaCppEngine(job, mix=mix, policy=policy, context=longest, threads=threads) as llama:
            return time_engine(partial(llama.replay, queue=None), server.served, policy, load, RealClock())

    return _of_job(job, timed, part=job.generate or job.loss)


def _of_job(job: Job, timed: Callable[[], PassProfile], *, part: object) -> PassProfile:
    from gpuwise.runtime.build.failure import job_failure

    try:
        return timed()
    except Exception as error:  # the job's own code may raise anything
        raise job_failure(error, job, doing="timing its passes", part=part) from error
