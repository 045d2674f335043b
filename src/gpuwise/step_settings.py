"""The settings of every verb, declared once: keywords of gpuwise.api, and the command line's flags.

A new technique is a field of gpuwise.strategy.Strategy and a row here. Where it excludes another one, it is a row of
gpuwise.strategy.legal, too.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, TypedDict, TypeVar, Unpack, cast, get_args, get_type_hints

from gpuwise.errors import InputError, nearest
from gpuwise.strategy import (
    ADAPTERS,
    CONTEXTS,
    MODES,
    OFFLOADS,
    OPTIMIZER_KERNELS,
    OPTIMIZERS,
    PIPELINE_SCHEDULES,
    PRECISIONS,
    RECOMPUTES,
    SHARDS,
    Mesh,
    Parallelism,
    StepFacts,
    Strategy,
    StrategyChanges,
    check_techniques,
)
from gpuwise.strategy.pipeline import fewest_micro_batches

Group = TypeVar("Group", bound=Mapping[str, object])


@dataclass(frozen=True)
class Setting:
    """What the command line shows of a setting.

    Attributes:
        help: one line.
        choices: the words it takes. Empty (the default) for numbers, switches and free text.
        metavar: what stands for a value without choices. "N" by default.
        off_switch: whether a switch can be turned off, too: --compile/--no-compile. False by default.
        only_training: whether a forward pass has no use for it. False by default.
        repeatable: whether the flag may stand several times; the keyword is a sequence. False by default.
    """

    help: str
    choices: tuple[str, ...] = ()
    metavar: str = "N"
    off_switch: bool = False
    only_training: bool = False
    repeatable: bool = False


class JobSizes(TypedDict, total=False):
    """Sizes of a sample, where the job does not fix them."""

    seq_len: Annotated[int | None, Setting("Tokens a sample.")]
    image_size: Annotated[int | None, Setting("Height and width of images, in pixels.")]


class Techniques(TypedDict, total=False):
    """Everything about a step but its batch and its devices; None leaves the choice to gpuwise. See Strategy."""

    precision: Annotated[
        str | None, Setting("Number formats of the arithmetic; fp16 trains with fp32 master weights.", PRECISIONS)
    ]
    recompute: Annotated[str | None, Setting("Activations made again in backward.", RECOMPUTES, only_training=True)]
    optimizer: Annotated[str | None, Setting("Instead of the job's own.", OPTIMIZERS, only_training=True)]
    optimizer_kernels: Annotated[
        str | None, Setting("How the update is launched (fused where PyTorch has it).", OPTIMIZER_KERNELS, only_training=True)
    ]
    optimizer_in_backward: Annotated[
        bool | None, Setting("Update each parameter as soon as its gradient is there.", only_training=True)
    ]
    keep_gradients: Annotated[
        bool | None, Setting("Set gradients to zero after a step instead of freeing them.", only_training=True)
    ]
    offload: Annotated[str | None, Setting("What lives in host memory.", OFFLOADS, only_training=True)]
    adapter: Annotated[
        str | None,
        Setting("Train low-rank additions to frozen weights; qlora holds those in 4 bits.", ADAPTERS, only_training=True),
    ]
    adapter_rank: Annotated[int | None, Setting("Rank of the additions (16).", only_training=True)]
    channels_last: Annotated[bool | None, Setting("Images and convolutions with their channels innermost in memory.")]
    compile: Annotated[bool | None, Setting("The step under torch.compile.", off_switch=True)]


class StepSettings(JobSizes, Techniques, total=False):
    """What every verb about steps takes."""

    micro_batch: Annotated[int | None, Setting("Samples a forward pass of one device.")]
    accumulate: Annotated[int | None, Setting("Micro-batches before an optimizer step.", only_training=True)]


class ParallelSettings(TypedDict, total=False):
    """How several devices share the work. See Mesh and Parallelism."""

    mesh: Annotated[str | Mesh | None, Setting("How devices share the work: dp=8, or dp_shard=8,tp=2.", metavar="AXES")]
    shard: Annotated[str | None, Setting("What the devices of dp_shard split (parameters).", SHARDS)]
    sequence_parallel: Annotated[bool | None, Setting("Split tensor-parallel norms along the sequence.")]
    loss_parallel: Annotated[bool | None, Setting("Split the loss of a tensor-parallel head along the vocabulary.")]
    context: Annotated[str | None, Setting("How devices of cp attend to the whole sequence (gather).", CONTEXTS)]
    pipeline_schedule: Annotated[
        str | None, Setting("Order of a pipeline's micro-batches (1f1b).", PIPELINE_SCHEDULES, only_training=True)
    ]
    stages_per_rank: Annotated[int | None, Setting("Pipeline stages of one device (1).", only_training=True)]
    compress_gradients: Annotated[bool | None, Setting("Reduce gradients in bf16.", only_training=True)]


class DeviceSettings(StepSettings, ParallelSettings, total=False):
    """What a verb about devices that the user names takes, too."""

    mode: Annotated[str | None, Setting("A training step (default) or a forward pass.", MODES)]


class NetworkSettings(TypedDict, total=False):
    """What a verb about several machines takes, too."""

    network: Annotated[str | None, Setting('What joins machines: "100 Gbit Ethernet", or a catalog link.', metavar="LINK")]


class ClusterSettings(DeviceSettings, NetworkSettings, total=False):
    """What a verb about devices of several machines takes."""


class WorkSettings(TypedDict, total=False):
    """How much is trained, and what its data pipeline delivers."""

    samples: Annotated[int | str | None, Setting("Train on this many samples, e.g. 50k; with --epochs, samples an epoch.")]
    epochs: Annotated[float | None, Setting("Passes over the job's data set.")]
    tokens: Annotated[int | str | None, Setting("Train on this many tokens, e.g. 20B.")]
    loader_samples_per_s: Annotated[float | None, Setting("What the data pipeline of a machine delivers.")]


class TrialSettings(TypedDict, total=False):
    """How long fits of a classical job are timed, which has an estimator in place of a network."""

    trial_limit: Annotated[float | str | None, Setting("Time fits of a ClassicalJob for this long (60s).", metavar="TIME")]


class ForecastSettings(ClusterSettings, WorkSettings, TrialSettings, total=False):
    """What `forecast` takes."""


class HostKeywords(TypedDict, total=False):
    """Of the host that feeds the device. They change no operation of the step."""

    threads: Annotated[int | None, Setting("Of the CPU's operations (default: its cores).")]
    pin_threads: Annotated[bool | None, Setting("Bind each of them to a core.")]
    loader_workers: Annotated[int | None, Setting("Processes that read data.")]
    prefetch: Annotated[int | None, Setting("Micro-batches made ready ahead.")]
    pinned_memory: Annotated[bool | None, Setting("Batches wait where the device can read by itself.", off_switch=True)]


class RunSettings(StepSettings, ParallelSettings, HostKeywords, total=False):
    """What a run takes."""


@cache
def settings_of(group: type) -> dict[str, tuple[type, Setting]]:
    """The rows of a group by name: the type of a value, and what the command line shows."""
    rows = {}
    for name, hint in get_type_hints(group, include_extras=True).items():
        value, setting = get_args(hint)
        types = get_args(value)
        rows[name] = next(kind for kind in (str, *types) if kind in types), setting  # text is parsed where it is taken
    return rows


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_FIELD = {"accumulate": "accumulation"}  # where Strategy calls it otherwise
_PLAIN = (None, False, "none")  # values that ask for nothing


def named_settings(settings: Group, group: type[Group]) -> Group:
    """The settings that are not None. Raises InputError for one that the group does not have."""
    names = list(settings_of(group))
    for name in settings:
        if name not in names:
            ways = [f"nearest: {', '.join(near)}"] if (near := nearest(name, names)) else []
            raise InputError(f"unknown setting {name!r}.", [*ways, f"one of: {', '.join(names)}"])
    return cast(Group, {name: value for name, value in settings.items() if value is not None})


def part_of(settings: Mapping[str, object], group: type[Group]) -> Group:
    """Those of the settings that a group has."""
    return cast(Group, {name: value for name, value in settings.items() if name in settings_of(group)})


def named_sizes(settings: JobSizes) -> dict[str, int]:
    """The sizes of a sample that are named."""
    sizes = {"seq_len": settings.get("seq_len"), "image_size": settings.get("image_size")}
    return {name: size for name, size in sizes.items() if size is not None}


def mesh_of(settings: ParallelSettings) -> Mesh | None:
    """The mesh among the settings, None where there is none. Raises InputError for a text that is no mesh."""
    return Mesh.parse(mesh) if isinstance(mesh := settings.get("mesh"), str) else mesh


def usual_micro_batches(settings: DeviceSettings | RunSettings) -> int | None:
    """The micro-batches of a step of a pipeline for which the user names none: one for each rank, or the fewest that its
    schedule takes. None where they are named, or without a pipeline."""
    mesh = mesh_of(settings)
    if mesh is None or mesh.pp == 1 or settings.get("accumulate") is not None or settings.get("mode") == "infer":
        return None
    schedule = settings.get("pipeline_schedule") or Parallelism().pipeline_schedule
    return max(mesh.pp, fewest_micro_batches(Parallelism(pipeline_schedule=schedule), mesh.pp))


def strategy_of(settings: Mapping[str, object], *, priced: bool = True, **chosen: Unpack[StrategyChanges]) -> Strategy:
    """The Strategy of these settings; `chosen` has what they leave open.

    Arguments:
        priced: whether the step is to be forecast, not only run.

    Raises InputError for values out of range and for settings that a forward pass has no use for, and what check_techniques
    raises for techniques that exclude each other.
    """
    names = {f.name for f in fields(Strategy)}
    values = {_FIELD.get(name, name): value for name, value in settings.items() if value is not None}
    if isinstance(mesh := values.get("mesh"), str):
        values["mesh"] = Mesh.parse(mesh)
    parallel = {f.name: values[f.name] for f in fields(Parallelism) if f.name in values}
    if parallel:
        values["parallelism"] = Parallelism(**cast(dict[str, Any], parallel))
    strategy = Strategy(**chosen).but(**cast(StrategyChanges, {name: values[name] for name in names & values.keys()}))
    _check_mode(settings)
    check_techniques(strategy, StepFacts(priced=priced))
    return strategy


def strategy_to_run(settings: RunSettings, **chosen: Unpack[StrategyChanges]) -> Strategy:
    """The Strategy of a run's settings, with the usual micro-batches of a pipeline. Arguments and errors as for strategy_of."""
    if (micro_batches := usual_micro_batches(settings)) is not None:
        chosen["accumulation"] = micro_batches
    return strategy_of(settings, priced=False, **chosen)


def sizes_of(settings: JobSizes) -> JobSizes:
    """The sizes of a sample among the settings, None where they are not."""
    return {"seq_len": settings.get("seq_len"), "image_size": settings.get("image_size")}


def _check_mode(settings: Mapping[str, object]) -> None:
    """Raises InputError where the settings of a forward pass name what only training does."""
    if settings.get("mode") != "infer":
        return
    for name, (_, setting) in settings_of(DeviceSettings).items():
        value = settings.get(name)
        if setting.only_training and value not in _PLAIN and (name, value) != ("accumulate", 1):
            flag = flag_of(name)
            raise InputError(f"a forward pass has no use for {flag}.", [f"leave out {flag}", "--mode train"])


def job_word(argument: object) -> str:
    """A job as a command to paste names it; JOB for a Job object, which has no name on the command line."""
    return shlex.quote(argument) if isinstance(argument, str) and argument else "JOB"


def flags_of(strategy: Strategy, *, without: Collection[str] = ()) -> str:
    """The flags that give a strategy on the command line, '--precision amp-bf16 --recompute full'; techniques that it does not
    use are left out, and so are the settings in `without`."""
    plain, words = Strategy(), []
    for name in settings_of(StepSettings):
        field = _FIELD.get(name, name)
        value = getattr(strategy, field, None)
        as_usual = value == getattr(plain, field, None) and field not in ("precision", "micro_batch")
        if name in without or value is None or as_usual or (field == "adapter_rank" and strategy.adapter == "none"):
            continue
        words.append(_flag(name, value))
    if strategy.mesh.devices > 1 and "mesh" not in without:
        words.append(f"--mesh {strategy.mesh}")
    words += [_flag(name, value) for name, value in strategy.parallelism.to_dict().items() if name not in without]
    return " ".join(words)


def _flag(name: str, value: object) -> str:
    return flag_of(name) if value is True else f"{flag_of(name)} {shlex.quote(str(value))}"
