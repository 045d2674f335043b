"""engine_model: the model of a plan as its settings say that it is served."""

from __future__ import annotations

from gpuwise.api.drafting import DraftedModel, DraftSettings
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.host_experts import HostedExperts, HostExperts
from gpuwise.api.host_layers import HostedModel, HostLayers
from gpuwise.api.served_job import ServedJob
from gpuwise.api.serving_catalog import ABOUT_THE_JOB
from gpuwise.errors import GpuwiseError, InputError
from gpuwise.hardware.catalog import Catalog
from gpuwise.serving.engines import Engine
from gpuwise.serving.rows import ServingRow
from gpuwise.serving_settings import ArrivalSettings, ServingSettings
from gpuwise.step_settings import flag_of, settings_of
from gpuwise.units import parse_bytes

MODES = ("gpu_layers", "cpu_experts", "draft", "prefill_on")
_OF = {
    "host": ("gpu_layers", "cpu_experts"),
    "host_memory": ("gpu_layers", "cpu_experts"),
    "draft_tokens": ("draft",),
    "acceptance": ("draft",),
    "network": ("prefill_on",),
}
_EXAMPLES = {
    "gpu_layers": "--gpu-layers auto",
    "cpu_experts": "--cpu-experts auto",
    "draft": "--draft llama3-8b",
    "prefill_on": "--prefill-on h100-sxm:2",
}


def engine_model(
    job: ServedJob, engine: Engine, *, precision: str | None, requested: ServingSettings, catalog: Catalog, named_devices: bool
) -> EngineModel:
    """The model under an engine.

    Arguments:
        precision: that the user names; None for the engine's own.
        requested: settings of serve_plan.
        named_devices: whether the user names devices.

    Raises InputError or UnknownNameError for settings that do not go together.
    """
    if precision not in (None, "bf16", "fp16", "fp32"):  # of activations, which the engines' commands take
        raise InputError(
            f"text is served in bf16, fp16 or fp32, not in {precision}.",
            ["--precision bf16", "--weights and --cache, the formats of weights, and of keys and values"],
        )
    format, cache = engine.format_of(requested.get("weights")), engine.cache_of(requested.get("cache"))
    arguments = (job, engine, precision, format, cache)
    _check(requested, named_devices=named_devices)
    host, memory = requested.get("host"), requested.get("host_memory")
    memory_bytes = None if memory is None else parse_bytes(memory)
    if (gpu_layers := requested.get("gpu_layers")) is not None:
        return HostedModel(HostLayers.of(gpu_layers, host=host, memory_bytes=memory_bytes), catalog, *arguments)
    if (cpu_experts := requested.get("cpu_experts")) is not None:
        return HostedExperts(HostExperts.of(cpu_experts, host=host, memory_bytes=memory_bytes), catalog, *arguments)
    if (draft := requested.get("draft")) is not None:
        settings = DraftSettings.of(draft, draft_tokens=requested.get("draft_tokens"), acceptance=requested.get("acceptance"))
        return DraftedModel(settings, *arguments)
    return EngineModel(*arguments)


def without_answer(name: str, error: GpuwiseError) -> ServingRow:
    """The row of a device that cannot serve, with the reason and the first way out. Raises what no other device mends."""
    if error.code in ABOUT_THE_JOB:
        raise error
    return ServingRow(name, reason=error.what.rstrip("."), way_out=next(iter(error.ways_out), ""))


def _check(requested: ServingSettings, *, named_devices: bool) -> None:
    modes = [name for name in MODES if requested.get(name) is not None]
    for name, goes_with in _OF.items():
        if requested.get(name) is not None and not set(goes_with) & set(modes):
            raise InputError(
                f"{flag_of(name)} goes with {' or '.join(map(flag_of, goes_with))}.",
                [_EXAMPLES[goes_with[0]], f"leave out {flag_of(name)}"],
            )
    if len(modes) > 1:
        raise InputError(
            f"{' and '.join(map(flag_of, modes))} together have no figures yet.",
            [f"leave out {flag_of(name)}" for name in modes],
        )
    follows = next((name for name in settings_of(ArrivalSettings) if name != "arrivals" and requested.get(name)), None)
    if follows and "prefill_on" in modes:
        flag = flag_of(follows)
        raise InputError(f"{flag} with --prefill-on has no figures yet.", [f"leave out {flag}", "leave out --prefill-on"])
    if modes and not named_devices:
        raise InputError(f"{flag_of(modes[0])} needs devices: the whole catalog is not searched with it.", ["--on rtx-4090"])
