"""EngineCosts: what an engine does beside its kernels."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class PlatformCosts:
    """What kernels of an engine take on the GPUs of one maker, whose driver launches them.

    Attributes:
        kernel_s: see EngineCosts.
        products_per_clock: see EngineCosts.
        attention_s: seconds that each layer adds where its attention is left to the host: the device waits for it, and it for
            the device; 0 where the device computes it.
    """

    kernel_s: float = 0.0
    products_per_clock: float = 0.0
    attention_s: float = 0.0


@dataclass(frozen=True)
class EngineCosts:
    """What an engine does beside its kernels.

    Attributes:
        iteration_s: seconds of the host in each iteration in which the device waits: scheduling, sampling, detokenizing.
        sequence_s: seconds of the host that each sequence adds to that.
        kernel_s: seconds between kernels, where every operation is a kernel of its own; 0 for engines that fuse.
        products_per_clock: multiply-adds of a multiprocessor each clock in products of more than MATRIX_VECTOR_TOKENS tokens
            with weights that are unpacked from blocks to int8; 0 for the speed that the kernel figures give.
        other_products: how long other products of so many tokens take over those of the kernel figures. 1 by default; CPUs
            take those of the figures.
        attention_s: see PlatformCosts.
        platforms: what differs on GPUs of a maker, by its name in the catalog, on a "CPU", or beside a kind of host, by both
            names ("NVIDIA, Windows"). Others have the values above.
        launch_s: seconds of the reference host (gpuwise.cost.host) for a kernel of passes that read prompts, which no captured
            graph launches; such a pass takes at least as long as its kernels take to launch.
        linear_layer_s: seconds of that host that such a pass adds for each layer of linear attention, whose chunked rule is a
            dozen kernels and numbers read back from the device, where a recording shows one kernel.
        linear_attention_s: seconds of the device that each layer of linear attention adds to a pass: its convolution, gates and
            norm are kernels of their own, which a recording shows as parts of one.
        decoding_launch_s: as launch_s for passes that only decode; 0 where a captured graph launches them.
        request_s: seconds from the arrival of a request to the queue: HTTP, tokenizer, the way between processes.
        prompt_token_s: seconds of that host for each new token of a prompt, while the device waits. vLLM of 2023 turned prompts
            back into text before their first token (vllm-project/vllm#984), and transformers of those years looked up all
            special tokens for each token of a text (huggingface/transformers#37773).
        own_sums: whether small sums over NVLink are kernels of the engine's own (gpuwise.serving.low_latency), as by default;
            else they are NCCL's, as in vLLM before 0.3.
        two_streams_tokens: new tokens of a pass up to which shared experts run on a stream of their own, beside the routed
            ones; 0 where they never do.
        cpu_share: share of a CPU's memory bandwidth at which products of fewer tokens read weights; 0 for the kernel figures'.
        cpu_products: share of its fp32 peak at which they then compute; 0 where that takes no time.
    """

    iteration_s: float = 0.0
    sequence_s: float = 0.0
    kernel_s: float = 0.0
    products_per_clock: float = 0.0
    other_products: float = 1.0
    attention_s: float = 0.0
    platforms: tuple[tuple[str, PlatformCosts], ...] = ()
    cpu_share: float = 0.0
    cpu_products: float = 0.0
    launch_s: float = 0.0
    linear_layer_s: float = 0.0
    linear_attention_s: float = 0.0
    decoding_launch_s: float = 0.0
    request_s: float = 0.0
    prompt_token_s: float = 0.0
    own_sums: bool = True
    two_streams_tokens: int = 0

    @property
    def of_kernels(self) -> tuple[object, ...]:
        """What it says of kernels."""
        return (
            self.kernel_s,
            self.products_per_clock,
            self.other_products,
            self.attention_s,
            self.platforms,
            self.cpu_share,
            self.cpu_products,
            self.own_sums,
            self.two_streams_tokens,
        )

    def on(self, vendor: str) -> EngineCosts:
        """The costs on a GPU of this maker, or on a "CPU"."""
        own = dict(self.platforms).get(vendor)
        return self if own is None else replace(self, platforms=(), **asdict(own))

    def beside(self, host: str) -> EngineCosts:
        """The costs of GPUs beside a kind of host, such as "Windows"; the same where nothing is known of it."""
        ending = f", {host}"
        own = {name.removesuffix(ending): each for name, each in self.platforms if name.endswith(ending)}
        return replace(self, platforms=tuple({**dict(self.platforms), **own}.items()))

    def with_platform(self, name: str, own: PlatformCosts) -> EngineCosts:
        """The same costs, but these on the platform of that name."""
        return replace(self, platforms=tuple({**dict(self.platforms), name: own}.items()))


NO_COSTS = EngineCosts()
