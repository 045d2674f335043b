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
def kernels_one_by_one(*, microseconds: float) -> str:
    """The engine runs each operation as a kernel of its own. microseconds: between two of them."""
    return (
        f"{microseconds:.2g} µs between kernels, as where a captured graph launches them; "
        "hosts that launch each one take up to 15 µs"
    )


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
def whole_catalog(*, considered: int, dearer: int) -> str:
    """Which kinds of instance were considered where the user names no devices."""
    left = f", of which {dearer} are dearer than those above" if dearer else ""
    return (
        f"considered {considered} kinds of instance that offers sell on demand{left}: 1, 2, 4 or 8 GPUs, of each chip the two "
        "smallest numbers that serve; --on changes it"
    )


@kind_of_note(flag="--engine")
def engine_runs_elsewhere(*, engine: str, chips: str) -> str:
    """Chips of the catalog that the engine does not run on, or has no figures for."""
    return f"left out, since {engine} does not run there or has no figures: {chips}"


@kind_of_note(flag="--precision")
def no_such_precision(*, precision: str, chips: str) -> str:
    """Chips of the catalog that do not compute in the precision."""
    return f"left out, since they do not compute in {precision}: {chips}"


@kind_of_note()
def too_little_memory(*, instances: str) -> str:
    """Kinds of instance whose memory does not hold the model and one request."""
    return f"left out, since weights and one request do not fit: {instances}"


@kind_of_note(flag="--slo")
def too_slow_for_a_token(*, instances: str) -> str:
    """Kinds of instance on which a token takes longer than its limit with nobody else there."""
    return f"left out, since a token alone takes longer than its limit: {instances}"
