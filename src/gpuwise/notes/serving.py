"""Notes on serving: what is assumed of requests, of the engine, and of its memory."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note


@kind_of_note(flag="--input")
def assumed_input_tokens(*, tokens: int) -> str:
    """The mean length of prompts was not named."""
    return f"assumed prompts of {tokens:,} tokens on average; --input changes it"


@kind_of_note(flag="--output")
def assumed_output_tokens(*, tokens: int) -> str:
    """The mean length of answers was not named."""
    return f"assumed answers of {tokens:,} tokens on average; --output changes it"


@kind_of_note(flag="--spread")
def spread_of_lengths(*, variation: float) -> str:
    """How prompts and answers differ in length. variation: standard deviation over mean."""
    return f"lengths are log-normal, their standard deviation {variation:g} times their mean; --spread changes it"


@kind_of_note()
def poisson_arrivals() -> str:
    """When requests arrive."""
    return "requests arrive independently of each other (Poisson), and reach replicas in turn"


@kind_of_note(flag="--engine")
def engine_figures(*, engine: str, versions: str, iteration_ms: float, sequence_ms: float) -> str:
    """What the engine adds to the kernels of an iteration: milliseconds, and milliseconds a running sequence."""
    each = f" and {sequence_ms:.3g} ms a running sequence" if sequence_ms else ""
    return f"{engine} {versions}: {iteration_ms:.3g} ms an iteration{each} beside its kernels; --engine changes it"


@kind_of_note(flag="--engine")
def kernels_one_by_one(*, microseconds: float, by_graphs: bool) -> str:
    """The engine runs each operation as a kernel of its own.

    Arguments:
        microseconds: between two of them, on the usual platform.
        by_graphs: whether captured graphs launch them.
    """
    if by_graphs:
        return (
            f"{microseconds:.2g} µs between kernels, as where a captured graph launches them; "
            "hosts that launch each one take up to 15 µs"
        )
    return (
        f"{microseconds:.2g} µs between kernels on NVIDIA GPUs under Linux, and no captured graphs: the host launches each one"
    )


@kind_of_note(flag="--cache")
def format_of_cache(*, format: str, quality: str) -> str:
    """Keys and values are kept in a narrower format. quality: what that may cost."""
    return f"keys and values in {format}; its cost in quality: {quality}"


@kind_of_note()
def assumed_host_memory(*, chip: str, gib: int) -> str:
    """A processor was named, and no machine, so its memory is assumed."""
    return f"assumed a machine of {gib:,} GiB around {chip}; `--on here` takes this machine's memory"


@kind_of_note(flag="--weights")
def format_of_weights(*, format: str, quality: str) -> str:
    """Weights are kept in a narrower format. quality: what that may cost."""
    return f"weights in {format}; its cost in quality: {quality}"


@kind_of_note(flag="--prefix-hits")
def no_prefix_cache() -> str:
    """No prompt shares its beginning with another one."""
    return "no prompt's beginning is in the prefix cache; --prefix-hits changes it"


@kind_of_note()
def all_experts_run() -> str:
    """A mixture of experts is forecast as if every expert ran in every pass."""
    return (
        "all experts are read in every iteration: with few sequences fewer are needed, and real iterations are faster than this"
    )


@kind_of_note(flag="--on")
def whole_catalog(*, considered: int, dearer: int, terms: str) -> str:
    """Which kinds of instance were considered where the user names no devices. terms: of the offers."""
    left = f", of which {dearer} are dearer than those above" if dearer else ""
    how = "at spot prices" if terms == "spot" else "on demand"
    return (
        f"considered {considered} kinds of instance that offers sell {how}{left}: 1, 2, 4 or 8 GPUs, of each chip the two "
        "smallest numbers that serve; --on changes it"
    )


@kind_of_note(flag="--engine")
def engine_runs_elsewhere(*, engine: str, chips: str) -> str:
    """Chips of the catalog that the engine does not run on, or has no figures for."""
    return f"left out, since {engine} does not run there or has no figures: {chips}"


@kind_of_note(flag="--weights")
def no_kernels_for_format(*, engine: str, format: str, chips: str) -> str:
    """Chips of the catalog on which the engine has no kernels for the format of weights."""
    return f"left out, since {engine} has no kernels for {format} there: {chips}"


@kind_of_note(flag="--engine")
def engine_runs_on_others(*, engine: str, chips: str, other: str) -> str:
    """Chips of the user that the engine does not run on, or has no figures for. other: an engine that runs on all of them."""
    change = f"; --engine {other} runs there" if other else ""
    return f"{engine} does not run on {chips}, or has no figures there: its costs on NVIDIA GPUs are assumed{change}"


@kind_of_note(flag="--precision")
def served_in_fp16(*, chips: str) -> str:
    """Chips that do not compute in the engine's bf16."""
    return f"served in fp16, since they do not compute in bf16: {chips}"


@kind_of_note(flag="--precision")
def no_such_precision(*, chips: str) -> str:
    """Chips of the catalog that do not compute in the precision, each with it."""
    return f"left out, since they do not compute in the precision: {chips}"


@kind_of_note()
def too_little_memory(*, instances: str) -> str:
    """Kinds of instance whose memory does not hold the model and one request."""
    return f"left out, since weights and one request do not fit: {instances}"


@kind_of_note()
def heads_not_shared(*, instances: str) -> str:
    """Kinds of instance whose devices cannot share the heads of attention evenly."""
    return f"left out, since so many devices cannot share the heads of attention evenly: {instances}"


@kind_of_note(flag="--slo")
def too_slow_for_a_token(*, instances: str) -> str:
    """Kinds of instance on which a token takes longer than its limit with nobody else there."""
    return f"left out, since a token alone takes longer than its limit: {instances}"


@kind_of_note(flag="--requests")
def assumed_requests(*, count: int, seconds: float) -> str:
    """How many requests are sent was not named. seconds: in which they are forecast to arrive."""
    return f"{count:,} requests, which arrive within about {seconds:.3g} s; --requests changes it"


@kind_of_note(flag="--rate")
def assumed_rate(*, share: float) -> str:
    """The rate of requests was not named. share: of the forecast of the highest rate within the limits."""
    return f"the rate is {share:.0%} of the highest one within the limits, as forecast; --rate changes it"


@kind_of_note(flag="--batch")
def served_in_batches(*, batch: int, window_ms: float, queue: int, engine: str = "pytorch") -> str:
    """How the server forms batches of forward passes."""
    runs = "plain PyTorch" if engine == "pytorch" else engine
    return (
        f"{runs} runs at most {batch:,} requests together, and waits {window_ms:.3g} ms for a batch to fill; "
        f"at most {queue:,} wait: --batch, --window, --queue"
    )


@kind_of_note(flag="--batch")
def served_in_turn(*, batch: int, queue: int) -> str:
    """How the server generates: with the job's own cache of keys and values."""
    what = f"groups of at most {batch:,} requests with equal prompts" if batch > 1 else "one request"
    return f"plain PyTorch runs {what} to the last token before the next; at most {queue:,} wait: --batch, --queue"


@kind_of_note(flag="--batch")
def served_packed(*, batch: int, tokens: int) -> str:
    """How Transformers' continuous batching serves."""
    return f"at most {batch:,} requests and {tokens:,} new tokens an iteration, which requests join as they come: --batch"


@kind_of_note(flag="--batch")
def served_in_slots(*, slots: int, tokens: int, queue: int) -> str:
    """How llama.cpp serves."""
    return (
        f"llama.cpp has {slots:,} slots and reads up to {tokens:,} new tokens an iteration; at most {queue:,} requests wait: "
        "--batch, --queue"
    )


@kind_of_note()
def built_for_older_processors(*, built: str, processor: str) -> str:
    """The engine's package computes with narrower instructions than the processor has, and this machine was measured with."""
    return (
        f"this package of llama.cpp computes with {built}, and the processor has {processor}, with which forecasts reckon: "
        "prompts are read more slowly than forecast; one built from source has both"
    )


@kind_of_note()
def in_one_process() -> str:
    """Where clients and server are."""
    return "clients are a thread of this process, without a network: nothing here counts sockets, tokenizers or images decoded"


@kind_of_note()
def one_sample_a_request() -> str:
    """What a request is, of a model without a cache."""
    return "a request is one sample of the job's batch; samples are collated as they come"


@kind_of_note(flag="--rate")
def above_capacity(*, rate_per_s: float, capacity_per_s: float) -> str:
    """More requests arrive than are served."""
    rate, capacity = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (rate_per_s, capacity_per_s))
    return (
        f"{rate} requests/s are above the {capacity} that are forecast to be served at most: they queue, and latencies grow "
        "with the length of the load"
    )


@kind_of_note()
def machine_not_measured() -> str:
    """The forecast rests on figures of other machines."""
    return "this machine's speed is not measured: after `gpuwise measure` forecasts are closer and intervals narrower"


@kind_of_note(flag="--rate")
def waiting_multiplies_errors(*, share: float, slower: float, longer: float, overloads: bool) -> str:
    """The rate is near what is served at most, so a small error of passes is a large one of waiting.

    share: the rate over what is served at most. slower: times of passes at the end of their interval over the forecast.
    longer: what that makes of the 99th percentile of latency. overloads: whether less than the rate is then served.
    """
    words = (
        f"the rate is {share:.0%} of what is served at most, where waiting multiplies errors: with passes {slower:.3g} times "
        f"as long, as their interval reaches, the slowest 1 % of answers take {longer:.3g} times as long"
    )
    return words + (", and more so the longer the load lasts, since the rate is then above what is served" if overloads else "")


@kind_of_note()
def clients_were_late(*, late_ms: float, share: float) -> str:
    """The machine was too busy to send requests in time. share: of the median latency."""
    return f"a request was sent {late_ms:.3g} ms after its arrival, {share:.0%} of the median latency: the machine was busy"


@kind_of_note()
def ended_early() -> str:
    """Ctrl-C ended the load."""
    return "interrupted: both columns are of the requests that had ended"
