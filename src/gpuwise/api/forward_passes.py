"""JobPasses: the forward passes of a job on any device, priced as `forecast --mode infer` prices them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwise.api.devices import Device, is_this_cpu
from gpuwise.api.engine_model import ASSUMED_BYTES
from gpuwise.api.forecasting import step_precisions
from gpuwise.api.server_parts import server_part, servers_considered
from gpuwise.api.source import StepSource
from gpuwise.cost.forecast import Forecast
from gpuwise.cost.rates import check_can_run
from gpuwise.errors import DoesNotFitError, PrecisionError, UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note
from gpuwise.notes import serving as notes
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.space.legal import in_each_precision
from gpuwise.serving.forward_instance import CLOSE, BatchedPass, ForwardInstance, pass_limit_s
from gpuwise.serving.graph_engines import GraphEngine
from gpuwise.serving.padded import PaddedTimes
from gpuwise.serving.pass_times import ForwardTimes, sizes_up_to
from gpuwise.serving.profile import PassProfile, corrected_groups
from gpuwise.serving.saturation import Limits
from gpuwise.serving.windowed import NO_COSTS, ServerCosts, WindowPolicy
from gpuwise.strategy import Strategy, check_techniques
from gpuwise.units import format_bytes

Key = tuple[str, int | None, bool, int | None]
MOST = 256  # samples of the largest pass where no batch is named


@dataclass(frozen=True)
class DevicePasses:
    """The passes of a job on one device.

    Attributes:
        forecasts: by their samples: 1, 2, 4 and so on, as far as they fit.
        profile: of the passes that were timed; None (default) where none were.
        padded: times over samples of different lengths, the longest of which `forecasts` are of; None (default) of equal ones.
    """

    forecasts: dict[int, Forecast]
    profile: PassProfile | None = None
    padded: PaddedTimes | None = None

    @property
    def forecast_times(self) -> ForwardTimes:
        """The times as forecast."""
        return ForwardTimes({size: forecast.step_time_s for size, forecast in self.forecasts.items()})

    @property
    def times(self) -> ForwardTimes | PaddedTimes:
        """The times as forecast, corrected by those that were timed."""
        if self.padded is not None:
            return self.padded
        if self.profile is None:
            return self.forecast_times
        corrected = corrected_groups(self.forecast_times, self.profile)
        assert isinstance(corrected, ForwardTimes)
        return corrected

    @property
    def costs(self) -> ServerCosts:
        """What the server adds, where it was timed."""
        return NO_COSTS if self.profile is None else self.profile.costs

    @property
    def precision(self) -> str:
        return self.forecasts[1].strategy.precision

    def of(self, policy: WindowPolicy, *, servers: int = 1, threads: int = 0) -> BatchedPass:
        """A pass of a full batch. servers, threads: see BatchedPass."""
        full = self.forecasts[policy.batch]
        seconds = self.times.interval(policy.batch)
        return BatchedPass(
            self.precision,
            policy.batch,
            policy.window_s,
            seconds,
            full.memory.device_bytes,
            full.why.replace("--micro-batch", "--batch"),  # the flag of serve_plan for it
            servers=servers,
            threads=threads,
        )


@dataclass(frozen=True)
class PassSettings:
    """How forward passes run.

    Attributes:
        batch: most samples of a pass; None searches among 1, 2, 4 to MOST.
        window_s: how long an idle server waits for a batch to fill.
        precision: of the arithmetic; None takes the fastest that the device and the job have.
        techniques: compiled passes, and the layout of images.
        limits: what users accept.
        engine: that runs the exported graph; None (default) for plain PyTorch.
        servers: processes that share a processor; None searches among 1, 2, 4 to its cores. Default 1.
    """

    batch: int | None
    window_s: float
    precision: str | None
    techniques: Strategy
    limits: Limits
    engine: GraphEngine | None = None
    servers: int | None = 1


class JobPasses:
    """A job's forward passes, recorded once for each kind of device and precision.

    Arguments:
        source: of the job's traces.
        settings: how they run.
    """

    def __init__(self, source: StepSource, settings: PassSettings) -> None:
        self.source, self.settings = source, settings
        self._limit_s = pass_limit_s(settings.limits)
        self._pricers: dict[tuple[bool, str, bool], StepPricer] = {}
        self._passes: dict[Key, DevicePasses] = {}
        self._memory_assumed: set[str] = set()

    @property
    def notes(self) -> tuple[Note, ...]:
        """What is assumed of the sizes of a sample, and of machines of which the processor alone is named."""
        sizes = {
            note.text: note
            for passes in self._passes.values()
            for note in passes.forecasts[1].assumption_notes
            if note.flag in ("--seq-len", "--image-size")
        }
        memory = [notes.assumed_host_memory(chip=chip, gib=ASSUMED_BYTES // 2**30) for chip in sorted(self._memory_assumed)]
        return (*sizes.values(), *memory)

    def passes(self, device: Device) -> DevicePasses:
        """The passes of one device of a machine.

        Raises UnsupportedError where the pass does not run there, DoesNotFitError where it does not fit, and errors of tracing.
        """
        if device.machines > 1:
            raise UnsupportedError("an instance across machines has no figures yet")
        if device.chip.kind == "cpu" and device.count > 1:
            raise UnsupportedError(f"several processors have no figures; copies that share one are --servers {device.count}")
        key = key_of(device)
        if key not in self._passes:
            choices = [self.settings.precision] if self.settings.precision else self._precisions(device)
            self._passes[key] = next(
                in_each_precision(choices, lambda each, _: self.in_precision(device, each), refusals=(PrecisionError,))
            )
        return self._passes[key]

    def time(self, device: Device, profile_of: Callable[[DevicePasses], PassProfile]) -> PassProfile:
        """Times the passes of a device, which from then on are those of `passes`. Errors as there, and those of the timing."""
        passes = self.passes(device)
        profile = profile_of(passes)
        self._passes[key_of(device)] = replace(passes, profile=profile)
        return profile

    def _precisions(self, device: Device) -> list[str]:
        """Those to choose from on a device, the fastest first."""
        return [self.settings.engine.precision] if self.settings.engine else step_precisions(self.source, device, mode="infer")

    def instances(self, device: Device) -> list[ForwardInstance]:
        """A machine with each number of servers and each batch that is considered, smallest first. Errors as for `passes`."""
        instances: list[ForwardInstance] = []
        for servers in servers_considered(device, self.settings.servers):
            try:
                passes = self.passes(server_part(device, servers))
            except DoesNotFitError:
                if instances:
                    break  # nor do more of them
                raise
            batches = [self.settings.batch] if self.settings.batch else sorted(passes.forecasts)
            if servers > 1 and device.cluster.memory_bytes is None:  # a processor whose machine's memory is assumed
                needed = {batch: servers * passes.forecasts[batch].memory.device_bytes for batch in batches}
                batches = [batch for batch in batches if needed[batch] <= ASSUMED_BYTES]
            times, costs = passes.times, passes.costs
            instances += [
                ForwardInstance(times, WindowPolicy(batch, self.settings.window_s), device.count, costs, servers)
                for batch in batches
            ]
        return instances

    def in_precision(self, device: Device, precision: str, sizes: Sequence[int] | None = None) -> DevicePasses:
        """The passes of these sizes (by default of those to choose from), as far as they fit. Errors as for `passes`."""
        chip, memory_bytes = device.chip, device.cluster.memory_bytes
        if self.settings.engine is not None:
            self.settings.engine.check(chip, precision)
        strategy = self.settings.techniques.but(precision=precision)
        check_techniques(strategy, self.source.step_facts(device.target))
        check_can_run(chip, mode="infer", precision=precision)  # before any tracing
        cluster = Cluster(chip, memory_bytes=memory_bytes)
        forecasts: dict[int, Forecast] = {}
        for size in sizes or sizes_up_to(self.settings.batch or MOST):
            forecast = self._forecast(strategy.but(micro_batch=size), cluster, device)
            if not self._fits(forecast, chip.id):
                break
            forecasts[size] = forecast
            if self.settings.batch is None and sizes is None and self._larger_is_useless(forecasts):
                break
        if 1 not in forecasts or (self.settings.batch and self.settings.batch not in forecasts):
            size, needed = forecast.strategy.micro_batch, format_bytes(forecast.memory.device_bytes)
            capacity = format_bytes(forecast.memory.capacity_bytes or ASSUMED_BYTES)
            raise DoesNotFitError(f"a pass of {size:,} in {precision} takes {needed}; {chip.id} has {capacity}")
        return DevicePasses(forecasts)

    def _forecast(self, strategy: Strategy, cluster: Cluster, device: Device) -> Forecast:
        """The pass at one size: from a recording of all sizes where there is one, else from that of this size."""
        on_this_cpu = is_this_cpu(device)
        source = self.source.with_own_kernels() if on_this_cpu else self.source
        for single in (True,) if strategy.compile else (False, True):  # of compiled passes each size is recorded anyway
            key = on_this_cpu, device.target, single
            if key not in self._pricers:
                traces = source.step_traces(device.target) if single else source.traces(device.target)
                self._pricers[key] = StepPricer(traces)
            pricer = self._pricers[key]
            if single or pricer.traces.family(strategy).covers({"micro_batch": strategy.micro_batch}):
                break
        forecast = pricer.forecast(strategy, cluster, expandable=False)
        return (
            forecast
            if self.settings.engine is None
            else self.settings.engine.forecast(forecast, pricer.trace(strategy), cluster.chip)
        )

    def _larger_is_useless(self, forecasts: Mapping[int, Forecast]) -> bool:
        """Whether the largest pass takes longer than the limit, or serves hardly more samples a second than a quarter of it."""
        size = max(forecasts)
        seconds, quarter = forecasts[size].step_time_s.value, forecasts.get(size // 4)
        if quarter is None or seconds > self._limit_s:
            return seconds > self._limit_s
        return 4 * quarter.step_time_s.value < (1 + CLOSE) * seconds

    def _fits(self, forecast: Forecast, chip: str) -> bool:
        if forecast.memory.fits is not None:
            return forecast.memory.fits
        self._memory_assumed.add(chip)
        return forecast.memory.device_bytes <= ASSUMED_BYTES


def key_of(device: Device) -> Key:
    """What passes depend on."""
    return device.chip.id, device.chip.sm_count, device.spec.machine is not None, device.cluster.memory_bytes
