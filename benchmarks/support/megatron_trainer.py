"""What the trainers of published Megatron runs do otherwise than each other."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Trainer:
    """One version of Megatron-LM or Megatron-DeepSpeed.

    Attributes:
        of_2022: Megatron-LM of 2022, which sums what layers split by columns send back while their weights' gradients are
            computed (--no-async-tensor-model-parallel-allreduce turns it off). Default False: of 2021, which Megatron-DeepSpeed
            was made from.
        sharded_state: replicas share the state and the update (ZeRO stage 1). Default False.
        fused_update: one kernel unscales and clips gradients and updates parameters (DeepSpeed without ZeRO). Default False.
        launches_block: CUDA_LAUNCH_BLOCKING was set. Default False.
        fp32_gradients: gradients of micro-batches are added up in fp32, beside those in 16 bits (DeepSpeed's BF16_Optimizer).
            Default False.
        embeddings_are_blocks: stages are cut as if the embedding and the head were a block each. Default False.
    """

    of_2022: bool = False
    sharded_state: bool = False
    fused_update: bool = False
    launches_block: bool = False
    fp32_gradients: bool = False
    embeddings_are_blocks: bool = False

    def first_blocks(self, blocks: int, stages: int) -> tuple[int, ...]:
        """The first block of each stage: equally many, but for the last stage where they do not divide."""
        extra = int(self.embeddings_are_blocks)
        each = -(-(blocks + 2 * extra) // stages)
        return tuple(max(0, min(stage * each - extra, blocks - 1)) for stage in range(stages))


MEGATRON_DEEPSPEED = Trainer(fused_update=True)
MEGATRON_2022 = Trainer(of_2022=True)
# bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md: 320 GPUs and more hung without CUDA_LAUNCH_BLOCKING
# ("dealing with JZ hanging on the large model"); fp16 with ZeRO stage 1, then ("Rebalancing layers") bf16 with gradients
# accumulated in fp32, and stages by 'type:transformer|embedding'.
BIGSCIENCE_FP16 = Trainer(sharded_state=True, launches_block=True)
BIGSCIENCE_BF16 = replace(BIGSCIENCE_FP16, fp32_gradients=True, embeddings_are_blocks=True)
