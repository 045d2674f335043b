"""EngineCosts: what an engine does beside its kernels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineCosts:
    """What an engine does beside its kernels.

    Attributes:
        iteration_s: seconds of the host in each iteration in which the device waits: scheduling, sampling, detokenizing.
        sequence_s: seconds of the host that each sequence adds to that.
        kernel_s: seconds between kernels, where every operation is a kernel of its own; 0 for engines that fuse.
        int8_products, other_products: how long products of more than MATRIX_VECTOR_TOKENS tokens take over those of the kernel
            figures, in int8 and in other types. 1 by default; CPUs take those of the figures.
        launch_s: seconds of the reference host (gpuwise.cost.host) for a kernel of passes that read prompts, which no captured
            graph launches; such a pass takes at least as long as its kernels take to launch.
        linear_layer_s: seconds of that host that such a pass adds for each layer of linear attention, whose chunked rule is a
            dozen kernels and numbers read back from the device, where a recording shows one kernel.
        decoding_launch_s: as launch_s for passes that only decode; 0 where a captured graph launches them.
        request_s: seconds from the arrival of a request to the queue: HTTP, tokenizer, the way between processes.
        cpu_share: share of a CPU's memory bandwidth at which products of fewer tokens read weights; 0 for the kernel figures'.
        cpu_products: share of its fp32 peak at which they then compute; 0 where that takes no time.
    """

    iteration_s: float = 0.0
    sequence_s: float = 0.0
    kernel_s: float = 0.0
    int8_products: float = 1.0
    other_products: float = 1.0
    cpu_share: float = 0.0
    cpu_products: float = 0.0
    launch_s: float = 0.0
    linear_layer_s: float = 0.0
    decoding_launch_s: float = 0.0
    request_s: float = 0.0

    @property
    def of_kernels(self) -> tuple[float, ...]:
        """What it says of kernels."""
        return self.kernel_s, self.int8_products, self.other_products, self.cpu_share, self.cpu_products


NO_COSTS = EngineCosts()
