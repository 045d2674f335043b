"""apart_row: a row of instances that write answers, after others that read prompts."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from gpuwise.api.devices import Device, device_of
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.serving_modes import without_answer
from gpuwise.api.serving_money import price_source
from gpuwise.cost.network.collectives import collective_time
from gpuwise.cost.parameters import parameters
from gpuwise.errors import GpuwiseError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.links import most_inside
from gpuwise.notes import Note
from gpuwise.notes import serving_modes as notes
from gpuwise.serving.apart import AnswerLoad, ApartInstances, PromptLoad, PromptsApart, Transfer, fewest
from gpuwise.serving.fleets import Fleet
from gpuwise.serving.generation import Generation
from gpuwise.serving.instance import Instance, LoadShape, latencies
from gpuwise.serving.launch import launch_line, launched_model, longest_request
from gpuwise.serving.launch_modes import apart
from gpuwise.serving.platforms import runs_on
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.rows import MOST_SHARE, ServingRow
from gpuwise.serving.saturation import Limits
from gpuwise.trace.header import RankGroup

ENGINES = ("vllm", "tensorrt-llm")  # that move keys and values between instances
INSIDE = "inside"  # in place of a network: both kinds of instance on one machine
PROBE_BYTES = 1e9  # of a message whose time gives a network's bandwidth


@dataclass(frozen=True)
class Kind:
    """One kind of instance.

    Attributes:
        device: its devices.
        generation: of the model on one of them.
        instance: how it serves.
    """

    device: Device
    generation: Generation
    instance: Instance


@dataclass
class ApartPlan:
    """What rows of instances apart have in common.

    Attributes:
        prefill_on: devices of an instance that reads prompts.
        network: that joins instances, in words, or INSIDE; None for that of offers.
        catalog, model, load, limits, rate_per_s: as in serve_plan.
        notes: what the rows so far assume.
    """

    prefill_on: Device
    network: str | None
    catalog: Catalog
    model: EngineModel
    load: LoadShape
    limits: Limits
    rate_per_s: float
    notes: tuple[Note, ...] = ()

    def row(self, text: str) -> ServingRow:
        """The row of a device that writes answers; with a reason where there is none."""
        writes = device_of(text, self.catalog)
        try:
            return self._answer(writes)
        except GpuwiseError as error:
            return without_answer(f"{writes.cluster.name} after {self.prefill_on.cluster.name}", error)

    def _answer(self, device: Device) -> ServingRow:
        if self.model.engine.name not in ENGINES:
            raise UnsupportedError(
                f"{self.model.engine.name} does not move keys and values between instances", [f"--engine {ENGINES[0]}"]
            )
        reads, writes = self._kind(self.prefill_on), self._kind(device)
        writes = replace(writes, instance=replace(writes.instance, policy=replace(writes.instance.policy, brought=True)))
        transfer = self._transfer(reads, writes)
        note = notes.cache_moves(link=transfer.name, gbytes_per_s=self._bytes_per_s(transfer, reads, writes) / 1e9)
        self.notes += () if note in self.notes else (note,)
        return self._row(reads, writes, transfer)

    def _row(self, reads: Kind, writes: Kind, transfer: Transfer) -> ServingRow:
        shape = {field.name: getattr(self.load, field.name) for field in fields(LoadShape)}
        limits, name = self.limits, f"{writes.device.cluster.name} after {reads.device.cluster.name}"
        alone = ApartInstances(reads.instance, writes.instance, transfer, 1, 1).served(self._mean_request())
        rates = (
            reads.instance.saturation_rate(PromptLoad(**shape), Limits(ttft_s=limits.ttft_s, share=limits.share)),
            writes.instance.saturation_rate(AnswerLoad(**shape), Limits(tpot_s=limits.tpot_s, share=limits.share)),
        )
        if not all(rates):
            limit, kind = ("ttft", "read prompts") if not rates[0] else ("tpot", "write answers")
            return ServingRow(name, reason=f"{limit} is above its limit at any rate on instances that only {kind}")
        counts = [Fleet("", 0.0, MOST_SHARE * rate).replicas(self.rate_per_s) for rate in rates]
        prices = reads.device.usd_per_hour, writes.device.usd_per_hour
        instances, _ = fewest(
            ApartInstances(reads.instance, writes.instance, transfer, *counts),
            limits,
            lambda count: self.load.at(self.rate_per_s, count=count),
            usd=(prices[0] or 1.0, prices[1] or 1.0),
        )
        at_rate = self.load.at(self.rate_per_s, count=instances.requests)
        outcomes = instances.outcomes(at_rate)
        usd, read_usd, offer = self._price(instances, reads, writes)
        usd_per_request = None if usd is None else usd / 3600 / self.rate_per_s
        written = float(np.mean(at_rate.output_tokens))
        tokens = written + float(np.mean(at_rate.input_tokens))
        return ServingRow(
            name,
            replicas=instances.writers,
            saturation_rate=rates[1],
            alone_ttft_s=float(alone.ttft_s[0]),
            alone_latency_s=float(alone.latency_s[0]),
            latency=latencies(outcomes, reads.instance.first_token_spread),
            share_within=limits.share_of(outcomes[0]),
            load=self.rate_per_s / (instances.writers * rates[1]),
            cache_tokens=writes.instance.policy.cache_tokens,
            weight_bytes=self.model.weight_bytes(writes.device, writes.generation),
            usd_per_hour=usd,
            usd_per_million_output=None if usd_per_request is None else 1e6 * usd_per_request / written,
            usd_per_million_tokens=None if usd_per_request is None else 1e6 * usd_per_request / tokens,
            usd_per_request=usd_per_request,
            offer=offer,
            launch=apart(self._launch(writes), self.model.engine.name, reads=False),
            mode=PromptsApart(
                device=reads.device.cluster.name,
                readers=instances.readers,
                reads_per_s=rates[0],
                link=transfer.name,
                link_bytes_per_s=self._bytes_per_s(transfer, reads, writes),
                transfer_s=float(transfer.seconds(np.array([round(self.load.lengths.input_tokens)]))[0]) + transfer.latency_s,
                launch=apart(self._launch(reads), self.model.engine.name, reads=True),
                usd_per_hour=read_usd,
            ),
        )

    def _price(self, instances: ApartInstances, reads: Kind, writes: Kind) -> tuple[float | None, float | None, str]:
        """Dollars an hour of all instances, and of those that read; None without a price. Whose price it is."""
        if self.network == INSIDE:
            chip, devices = reads.device.chip, instances.readers * reads.device.count + instances.writers * writes.device.count
            most = most_inside(chip, catalog=self.catalog)
            if devices > most:
                raise UnsupportedError(
                    f"{devices:,} x {chip.id} are more than the {most:,} of one machine",
                    ['--network "400 Gbit InfiniBand"', "a lower rate"],
                )
            machines = (device_of(f"{chip.id}:{count}", self.catalog) for count in range(devices, most + 1))
            sold = next((machine for machine in machines if machine.offer is not None), None)
            return (None, None, "") if sold is None else (sold.usd_per_hour, None, price_source(sold.offer))
        usd = [
            None if kind.device.usd_per_hour is None else kind.device.usd_per_hour * count
            for kind, count in ((reads, instances.readers), (writes, instances.writers))
        ]
        offer = "; ".join(filter(None, dict.fromkeys(price_source(kind.device.offer) for kind in (reads, writes))))
        return (None if usd[0] is None or usd[1] is None else usd[0] + usd[1]), usd[0], offer

    def _kind(self, device: Device) -> Kind:
        self.model.check(device)
        if device.machines > 1:
            raise UnsupportedError("instances across machines that only read or only write have no figures yet")
        generation = self.model.of(device)
        return Kind(device, generation, self.model.instance(device, generation, self.load))

    def _mean_request(self) -> Requests:
        read, written = (max(1, round(n)) for n in (self.load.lengths.input_tokens, self.load.lengths.output_tokens))
        return requests(np.zeros(1), np.array([read]), np.array([written]), cached_share=self.load.cached_share)

    def _transfer(self, reads: Kind, writes: Kind) -> Transfer:
        """Each device sends its part, so the instance with fewer devices, or the slower network, sets the time."""
        if self.network == INSIDE and reads.device.chip != writes.device.chip:
            raise UnsupportedError(
                f"no machine has both {reads.device.chip.id} and {writes.device.chip.id}", ['--network "100 Gbit Ethernet"']
            )
        sent = (sent_by(kind.device, kind.generation, network=self.network, catalog=self.catalog) for kind in (reads, writes))
        return max(sent, key=lambda each: each.seconds(np.array([1]))[0])

    @staticmethod
    def _bytes_per_s(transfer: Transfer, reads: Kind, writes: Kind) -> float:
        """Of all devices of an instance together."""
        return transfer.bytes_per_s * min(reads.device.devices, writes.device.devices)

    def _launch(self, kind: Kind) -> str:
        model, policy = self.model, kind.instance.policy
        if not runs_on(model.engine.name, kind.device.chip):
            return ""
        return launch_line(
            model.engine.name,
            launched_model(model.job.name, engine=model.engine.name, weights=model.format.name if model.format else ""),
            policy,
            devices=kind.device.devices,
            precision=model.precision_on(kind.device.chip),
            memory_share=model.engine.memory_share,
            longest=longest_request(self.load.at(self.rate_per_s), policy, model.job.context_length),
            weights=model.format.name if model.format else "",
            cache=model.cache.name if model.cache else "",
        )


def sent_by(device: Device, generation: Generation, *, network: str | None, catalog: Catalog) -> Transfer:
    """How the devices of an instance send their parts of keys and values to another instance.

    Arguments:
        generation: of the model on one of them.
        network: as for ApartPlan.
    """
    if network == INSIDE:
        pair = device_of(f"{device.chip.id}:{most_inside(device.chip, catalog=catalog)}", catalog)
        link, stride = pair.link, 1
    else:
        pair = device_of(f"{device.chip.id}:{device.devices}x2", catalog, network=network)
        link, stride = pair.network.link if pair.network else None, device.devices
    assert link is not None
    group = RankGroup("pp", 2, stride)
    call = collective_time("send", payload_bytes=PROBE_BYTES, group=group, cluster=pair.cluster, parameters=parameters())
    return Transfer(
        link.name,
        PROBE_BYTES / (call.seconds - call.latency_s),
        call.latency_s,
        generation.cache_bytes_per_token,
        generation.cache_bytes_per_sequence,
    )
