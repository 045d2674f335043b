"""The verbs as functions. PyTorch is imported only where a job must be traced or run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuwise.api.devices import device_of
from gpuwise.api.forecasting import check_mode, forecast_step
from gpuwise.api.installation import Installation, inspect_installation
from gpuwise.api.sources import PresetSource, source_of
from gpuwise.cost import Forecast
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware import detect_machine, load_catalog, parse_device
from gpuwise.hardware.names import split_device
from gpuwise.plan.compare import Comparison
from gpuwise.plan.compare import compare as compare_devices
from gpuwise.plan.economics import USD_PER_KWH
from gpuwise.plan.file import load_plan
from gpuwise.plan.fit import FitResult
from gpuwise.plan.fit import fit as find_fit
from gpuwise.plan.search import plan as search
from gpuwise.plan.types import Plan, PlanResult, Request
from gpuwise.strategy import Mesh, Strategy
from gpuwise.units import parse_count, parse_duration, parse_usd

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.runtime import TrainResult


def forecast(
    job: str | Job,
    *,
    on: str,
    micro_batch: int | None = None,
    accumulate: int | None = None,
    seq_len: int | None = None,
    image_size: int | None = None,
    precision: str | None = None,
    recompute: str | None = None,
    mesh: str | Mesh | None = None,
    optimizer: str | None = None,
    mode: str | None = None,
    compile: bool = False,
    **techniques: Any,
) -> Forecast:
    """One optimizer step of a job on a device (of a forward pass in mode "infer"): time, memory, energy, money.

    Arguments:
        job: a preset, `path/to/file.py:name`, `hf:...`, `timm:...`, a saved trace, or a Job.
        on: a chip with an optional count, "h100-sxm:8", "h100-80gb-sxm:8x4"; "cpu", or "here".
        micro_batch: samples a forward pass of one device. accumulate: micro-batches before an optimizer step.
        mesh: "dp=8", "dp_shard=8"; None replicates over all devices, or shards where that alone fits.
        compile: the step under torch.compile; priced as eager so far, which a warning says.
        techniques: optimizer_kernels, optimizer_in_backward, keep_gradients, offload, adapter and adapter_rank, as
            gpuwise.strategy.Strategy has them.

    What is left None is chosen, and named in `assumptions` with the flag that changes it.
    Raises InputError, UnknownNameError, JobError, FileFormatError, UnsupportedError or MissingDependencyError.
    """
    source = source_of(job, seq_len=seq_len, image_size=image_size)
    result = forecast_step(source, on, micro_batch=micro_batch, accumulate=accumulate, precision=precision,
                     recompute=recompute, mesh=mesh, optimizer=optimizer, mode=mode, compile=compile, **techniques)  # fmt: skip
    return replace(result, assumptions=_of_a_step(result.assumptions))


def fit(
    job: str | Job,
    *,
    on: str,
    micro_batch: int | None = None,
    seq_len: int | None = None,
    image_size: int | None = None,
    precision: str | None = None,
    recompute: str | None = None,
    optimizer: str | None = None,
    mode: str | None = None,
) -> FitResult:
    """The largest micro-batch of a job on a device, and what each memory technique would free and cost.

    Arguments: as for `forecast`; micro_batch is the one techniques are compared at, None for the largest that fits.
    Raises what `forecast` raises.
    """
    check_mode(mode, accumulate=None, recompute=recompute, optimizer=optimizer)
    source = source_of(job, seq_len=seq_len, image_size=image_size)
    catalog = load_catalog()
    device = device_of(on, catalog)
    if device.machines > 1:
        raise UnsupportedError("fit looks at one machine.", [f"--on {device.chip.id}:{device.count}"])
    Strategy(micro_batch=1 if micro_batch is None else micro_batch)  # refuses what is no sensible number
    if isinstance(source, PresetSource):
        source.search_recorded(optimizer=optimizer, precision=precision, recompute=recompute)
    result = find_fit(source, device.chip, catalog=catalog, count=device.count, link=device.link, precision=precision,
                      capacity_bytes=device.capacity_bytes, recompute=recompute, micro_batch=micro_batch,
                      optimizer=optimizer, mode=mode or "train", sizes=source.sizes)  # fmt: skip
    return replace(result, assumptions=_of_a_step([*device.spec.assumed, *result.assumptions]))


def compare(
    job: str | Job,
    *,
    on: str | Sequence[str],
    micro_batch: int | None = None,
    accumulate: int | None = None,
    seq_len: int | None = None,
    image_size: int | None = None,
    precision: str | None = None,
    recompute: str | None = None,
    optimizer: str | None = None,
    mode: str | None = None,
) -> Comparison:
    """Forecasts of a job on several devices, with speed-ups over the slowest and the reason for each.

    Arguments: as for `forecast`; on: devices in a list or separated by commas. A device that cannot run the job stands
    there with the reason. Raises what `forecast` raises, UnsupportedError only where no device can run it.
    """
    check_mode(mode, accumulate=accumulate, recompute=recompute, optimizer=optimizer)
    catalog = load_catalog()
    devices = [parse_device(name, catalog=catalog) for name in _device_names(on)]
    source = source_of(job, seq_len=seq_len, image_size=image_size)
    wanted = Strategy(micro_batch=1 if micro_batch is None else micro_batch,
                      accumulation=1 if accumulate is None else accumulate)  # fmt: skip
    result = compare_devices(source, devices, micro_batch=micro_batch, accumulation=wanted.accumulation,
                           precision=precision, recompute=recompute or "none", optimizer=optimizer,
                             mode=mode or "train", sizes=source.sizes)  # fmt: skip
    return replace(result, assumptions=_of_a_step(result.assumptions))


def plan(
    job: str | Job,
    *,
    samples: int | str | None = None,
    epochs: float | None = None,
    tokens: int | str | None = None,
    budget: float | str | None = None,
    deadline: float | str | None = None,
    on: str | Sequence[str] | None = None,
    own: str | Sequence[str] = (),
    spot: bool | None = None,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    precision: str | None = None,
    recompute: str | None = None,
    optimizer: str | None = None,
    seq_len: int | None = None,
    image_size: int | None = None,
    interruptions: float | None = None,
    electricity: float | None = None,
    stale: bool = False,
    limit: int | None = 12,
) -> PlanResult:
    """The cheapest ways to train a job inside a budget and a deadline, best first, with reasons.

    Arguments:
        samples, epochs, tokens: how much to train, one of them: 50_000 or "50k".
        budget: dollars or "20k". deadline: seconds or "3d".
        on: only these devices. own: machines at hand, ["rtx-4090:2"]. spot: True spot alone, False none, None both.
        global_batch: samples an optimizer step. micro_batch, precision, recompute: pinned instead of searched.
        interruptions: of a spot machine a day. electricity: dollars a kWh.
        stale: rank offers whose price is over a year older than the newest in the catalog, too.
        limit: plans returned at most, None for all.

    Raises NoPlanError where nothing is inside budget and deadline, DoesNotFitError, and what `forecast` raises.
    """
    request = Request(
        samples=None if samples is None else parse_count(str(samples), "a number of samples"),
        epochs=epochs,
        tokens=None if tokens is None else parse_count(str(tokens), "a number of tokens"),
        budget_usd=None if budget is None else parse_usd(str(budget)),
        deadline_s=parse_duration(deadline) if isinstance(deadline, str) else deadline,
        on=None if on is None else tuple(_one_machine(name, "--on") for name in _device_names(on)),
        own=tuple(_owned(text) for text in (_device_names(own) if own else ())),
        spot=spot, global_batch=global_batch, precision=precision, recompute=recompute, micro_batch=micro_batch,
        optimizer=optimizer, interruptions_per_day=interruptions, stale=stale, limit=limit,
        usd_per_kwh=USD_PER_KWH if electricity is None else electricity,
    )  # fmt: skip
    source = source_of(job, seq_len=seq_len, image_size=image_size)
    if isinstance(source, PresetSource):
        source.search_recorded(optimizer=optimizer, precision=precision, recompute=recompute)
    catalog = load_catalog()
    request = replace(request, here=detect_machine(catalog), samples_per_epoch=source.samples_per_epoch,
                      sizes=source.sizes, job_argument=source.argument)  # fmt: skip
    return search(source, request, catalog.offers, catalog)


def train(
    job: str | Job,
    *,
    plan: str | os.PathLike[str] | Plan | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    log: str | os.PathLike[str] | None = None,
    progress: str = "auto",
    seq_len: int | None = None,
    image_size: int | None = None,
    **strategy: Any,
) -> TrainResult:
    """Runs a job on this machine, with its forecast next to what is measured.

    Arguments:
        plan: a Plan or its file, whose strategy is run as it is; else the strategy is given by micro_batch, accumulate,
            precision, recompute and optimizer.
        epochs, steps: how long, one of them; None: as planned, or one epoch.
        log: a file that one JSON line a step is appended to. progress: auto | bar | plain | silent.

    Raises JobError where the plan is for another job or the job fails, and what `forecast` raises.
    """
    from gpuwise.api.training import train_here

    if not 0 <= seed < 2**63:
        raise InputError(f"--seed must be a whole number from 0 to 2^63 - 1, got {seed}.")
    given = {name: value for name, value in strategy.items() if value is not None}
    if plan is not None and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"{flags} and --plan exclude each other: a plan is run as it is.",
                         ["leave out --plan", f"leave out {flags}"])  # fmt: skip
    if plan is not None and not isinstance(plan, Plan):
        plan = load_plan(plan)
    sizes = {"seq_len": seq_len, "image_size": image_size}
    return train_here(job, plan, given, sizes=sizes, epochs=epochs, steps=steps, seed=seed, log=log, progress=progress)


def doctor() -> Installation:
    """Versions, devices, catalog dates, configuration files and presets of this installation."""
    return inspect_installation(load_catalog())


def _of_a_step(assumptions: Sequence[str]) -> tuple[str, ...]:
    """Without those about how much is trained, which move no number of a single step."""
    return tuple(dict.fromkeys(line for line in assumptions if "--samples" not in line))


def _device_names(on: str | Sequence[str]) -> list[str]:
    if not isinstance(on, str) and not (isinstance(on, Sequence) and all(isinstance(name, str) for name in on)):
        raise InputError(f"devices are named in a text or a list of texts, got {on!r}.", ['on="rtx-4090,h100-sxm:8"'])
    names = [name.strip() for name in (on.split(",") if isinstance(on, str) else on)]
    if not names or not all(names):
        raise InputError(f"cannot read the devices {on!r}.", ["write them like rtx-4090,h100-sxm:8"])
    return names


def _one_machine(text: str, flag: str) -> str:
    name, count, machines = split_device(text)
    if machines > 1:
        raise UnsupportedError(f"{text!r}: plans use one machine so far.", [f"{flag} {name}:{count}"])
    return text


def _owned(text: str) -> tuple[str, int]:
    name, count, _ = split_device(_one_machine(text, "--own"))
    if name.strip().lower() == "here":
        raise InputError("this machine is always considered: --own is for others.",
                         ["leave out --own here", "--on here considers it alone"])  # fmt: skip
    parse_device(text)  # an unknown chip, or more of it than a machine holds, is refused before any work
    return name, count or 1


