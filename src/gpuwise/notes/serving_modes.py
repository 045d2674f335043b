"""Notes on ways of serving: layers on the host, drafts, prompts read on other devices."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note


@kind_of_note(flag="--host")
def assumed_host(*, host: str, gib: int) -> str:
    """The host of a device of the catalog is not known. gib: of its memory."""
    return f"assumed a host with {host} and {gib:,} GiB; --host and --host-memory change it"


@kind_of_note(flag="--engine")
def layers_in_turn(*, engine: str) -> str:
    """Devices of an instance have layers of their own, and work one after the other."""
    return (
        f"{engine} gives each device layers of its own, which work in turn: several hold a larger model, and a token takes as "
        "long as on one"
    )


@kind_of_note(flag="--gpu-layers")
def layers_on_host(*, tokens: int, slowdown: float) -> str:
    """How layers on the host run. tokens: from which their weights are copied to the card. slowdown: of the processor."""
    return (
        f"passes over fewer than {tokens} tokens compute layers on the host with its processor, which takes {slowdown:g} times "
        "as long as without a card (measured on one machine); longer ones copy their weights over the link"
    )


@kind_of_note(flag="--cpu-experts")
def experts_on_host(*, tokens: int, slowdown: float) -> str:
    """How experts on the host run. tokens: from which those chosen are copied to the card. slowdown: of the processor."""
    return (
        f"in passes over fewer than {tokens} tokens the host's processor multiplies with its experts, and takes {slowdown:g} "
        "times as long as without a card (measured for whole layers, on one machine); longer ones copy over the link the "
        "experts that some token chooses, where each is chosen as often"
    )


@kind_of_note(flag="--acceptance")
def assumed_acceptance(*, acceptance: float, source: str) -> str:
    """How many of the draft's tokens are accepted was not named."""
    return (
        f"assumed that a token of the draft is accepted with probability {acceptance:g} ({source}); it depends on both models "
        "and on the texts: --acceptance changes it"
    )


@kind_of_note(flag="--draft")
def drafted(*, draft_tokens: int, mean: float) -> str:
    """What speculative decoding does. mean: tokens that an iteration gives a sequence."""
    return (
        f"each iteration drafts {draft_tokens:,} tokens and checks them in one pass, which gives {mean:.3g} tokens a sequence "
        "on average; each pass of the draft adds the engine's time of an iteration"
    )


@kind_of_note(flag="--engine")
def drafts_from_version(*, engine: str, version: str) -> str:
    """Older versions of the engine refuse a draft model. version: the last one that does."""
    return f"a draft model takes a {engine} newer than {version}, which refuses it; --draft ngram runs in older ones"


@kind_of_note(flag="--draft")
def format_of_draft(*, format: str) -> str:
    """In which format the weights of the draft are."""
    return f"the draft's weights in {format}"


@kind_of_note(flag="--prefill-on")
def cache_moves(*, link: str, gbytes_per_s: float) -> str:
    """Between instances that read and instances that write, keys and values move over a network."""
    return f"keys and values move over {link} at {gbytes_per_s:.3g} GB/s, between reading a prompt and its first token"
