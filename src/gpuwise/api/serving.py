"""serve_plan: what serving a model takes on each of some devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.padded_passes import NamedPasses
from gpuwise.api.plain_arguments import plainly
from gpuwise.api.served_job import served_job
from gpuwise.api.serving_forward import forward_plan
from gpuwise.api.serving_limits import parse_limits
from gpuwise.api.serving_text import text_plan
from gpuwise.api.sources import TRACE_SUFFIX, source_of
from gpuwise.hardware.catalog import load_catalog
from gpuwise.serving.forecast import ServingForecast
from gpuwise.serving_settings import ServingSettings
from gpuwise.step_settings import named_settings, sizes_of

if TYPE_CHECKING:
    from gpuwise.job import Job


@plainly
def serve_plan(
    job: str | Job, *, rate: str | None = None, on: str | Sequence[str] | None = None, **settings: Unpack[ServingSettings]
) -> ServingForecast:
    """What serving a model takes: instances, latencies and dollars, on each of some devices.

    A job that generates (Job.generate), as language presets and hf: models do, writes text under an engine. A request of any
    other job is one sample of a forward pass, which plain PyTorch runs in batches.

    Arguments:
        job: as for `forecast`.
        rate: requests of all users, such as "5/s" or "10k/day"; the mean over a day. None (default) takes that of `trace`, or
            what the users of `concurrency` reach.
        on: devices, in a list or separated by commas. "h100-sxm:2" is one instance whose layers two devices share, or in
            forward passes two devices with a copy each. None (default) for the cheapest of all that offers of the catalog
            sell, and this machine for forward passes.
        settings: optional keywords:
            slo: limits, such as "ttft=500ms,tpot=50ms,share=0.99": time to first token, time per output token, "latency" of the
                whole answer, and the share of requests that must stay within them (0.99 by default). None by default. Forward
                passes have a latency alone.
            budget: most dollars a month, such as "2k". None by default.
            profile: whether to time the model's passes on this machine first, and to plan `here` from them; the result's
                `timing` has both. Of text under llama.cpp alone. Default False.

            Of jobs that generate:
            input, output: mean tokens of prompts and answers. None (default) assumes 512 and 256.
            spread: standard deviation of both over their means; 0 for equal requests. Default 1.
            prefix_hits: share of each prompt that the prefix cache holds. Default 0.
            engine: of gpuwise.serving.engines. Default "vllm".
            precision: of activations and cache, and of weights without a format. Default: the engine's, mostly "bf16".
            weights: format of weights, of gpuwise.serving.formats. Default: the engine's, mostly as precision.
            cache: format of keys and values, of gpuwise.serving.formats: "fp8" or "q8_0". Default: as precision.
            api_price: dollars for a million tokens read and written of an API to compare with, "0.5,1.5". None by default.
            concurrency: users who each send the next request when the last one is answered. None by default.
            arrivals: "poisson" (default), or "bursty=2" with the standard deviation of gaps over their mean.
            trace: a file of requests, whose times and lengths are replayed; with `concurrency` their lengths alone. See
                gpuwise.serving.request_log. None by default.
            day: relative rates from hours on, "0:0.2,8:1,12:1.5,20:0.8", or a name of gpuwise.serving.days. None by default.
            autoscale: whether the number of instances follows the hours of the day. Default False.
            scale_to_zero: whether to look at stopping idle instances; `idle` is how long they are idle before ("10min").
            spot: whether to take spot offers, with instances to spare. Default False.
            gpu_layers: layers on the card, the head included, the others on the host (llama.cpp); "auto" for as many as fit.
                All by default.
            cpu_experts: layers, from the first, whose experts are on the host (llama.cpp); "all", or "auto" for as few as fit.
                None by default.
            host: processor of the host, of the catalog, or "here". Default: this machine's for "here", else "ryzen-7950x".
            host_memory: memory of the host, such as "128GiB". Default: this machine's for "here", else 64 GiB.
            draft: a smaller job that writes tokens ahead, "ngram" for a look-up in the text so far, or a layer beside the
                model's own, "mtp" or "eagle3". None by default.
            draft_tokens: tokens that the draft writes ahead. Default 3; of "mtp" 1.
            acceptance: probability that the model accepts one of them. Default 0.7, of "mtp" 0.82, of "eagle3" 0.76; a look-up
                has none.
            prefill_on: devices of instances that read prompts alone, such as "h100-sxm:2": rows in which the devices of `on`
                write answers after them stand beside those in which they do both. None by default.
            network: what joins both, such as "100 Gbit Ethernet", or "inside" for one machine. Default: that of an offer.

            Of forward passes:
            batch: most requests of a pass. None (default) takes the one of 1, 2, 4 to 256 that serves most.
            servers: processes that share the cores of a processor, and one line of requests: a number, or "auto" for the best
                of 1, 2, 4 to its cores. Default 1.
            window: how long an idle server waits for a batch to fill, such as "5ms". Default none.
            input, spread: mean tokens of a sample and their standard deviation over it (1), where samples differ. None
                (default): all have `seq_len`.
            buckets: most tokens of each bucket, "64,128,512": a batch is of one, and padded to its end. None (default) pads
                batches of any samples to the longest of them.
            seq_len, image_size, compile, channels_last: as for `forecast`.
            engine: "pytorch" (default), "onnxruntime" or "openvino", which run the exported graph on processors, in fp32.
            precision: as for `forecast`. Default: the fastest of each device.

    A device that cannot serve the model has a row with the reason. Raises InputError, UnknownNameError, JobError,
    NoPlanError (nothing serves the rate inside the budget), UnsupportedError or MissingDependencyError.
    """
    requested = named_settings(settings, ServingSettings)
    limits, sizes = parse_limits(requested.get("slo") or ""), sizes_of(requested)
    catalog = load_catalog().where_servers_stay()
    served = None if isinstance(job, str) and job.endswith(TRACE_SUFFIX) else served_job(job, **sizes)
    if served is None or not served.facts.writes_text:
        named = NamedPasses(served, lambda tokens: source_of(job, seq_len=tokens, image_size=requested.get("image_size")))
        return forward_plan(source_of(job, **sizes), catalog, requested, named=named, limits=limits, rate=rate, on=on)
    return text_plan(served, catalog, requested, limits=limits, rate=rate, on=on)
