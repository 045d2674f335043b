"""Peak memory of a training step: what the recording says, against what this machine's CPU really allocates.

    python -m benchmarks.memory_on_cpu [--only TEXT]

Every configuration is recorded with the CPU's kernels under fake tensors, then the same Program runs for real under
PyTorch's profiler, whose allocation records are replayed to the largest number of live bytes. The CPU allocator does not
round, so neither does the prediction here. Operators that allocate through oneDNN (convolutions) hold buffers inside one
call that no recording sees.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from gpuwise.job import Job, checked_batch
from gpuwise.job.models.bert import Bert, BertConfig
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import masked_word_batch, next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mlp import Mlp, MlpConfig, class_loss, image_batch, table_batch
from gpuwise.job.models.resnet import ResNet
from gpuwise.job.models.unet import Unet, UnetConfig, diffusion_batch, diffusion_loss
from gpuwise.job.models.vit import Vit, VitConfig
from gpuwise.runtime.program import Program, build
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing import record

VOCABULARY, SEQ_LEN = 2048, 64


@dataclass(frozen=True)
class Case:
    name: str
    job: Job
    strategy: Strategy
    convolutions: bool = False


def cases() -> list[Case]:
    """Small models of every family, each precision, recompute and optimizer at least once."""
    mlp, bert, gpt, llama = _mlp(), _bert(), _gpt(), _llama()
    return [
        Case("MLP, adamw", mlp, Strategy(micro_batch=64)),
        Case("MLP, sgd", mlp, Strategy(micro_batch=64, optimizer="sgd")),
        Case("MLP, momentum", mlp, Strategy(micro_batch=64, optimizer="momentum")),
        Case("MLP, adam, amp-bf16", mlp, Strategy(micro_batch=64, optimizer="adam", precision="amp-bf16")),
        Case("BERT, adamw", bert, Strategy(micro_batch=4)),
        Case("BERT, recomputed", bert, Strategy(micro_batch=4, recompute="full")),
        Case("GPT-2, adamw", gpt, Strategy(micro_batch=4)),
        Case("GPT-2, amp-bf16", gpt, Strategy(micro_batch=4, precision="amp-bf16")),
        Case("GPT-2, bf16", gpt, Strategy(micro_batch=4, precision="bf16")),
        Case("Llama, adamw", llama, Strategy(micro_batch=4)),
        Case("Llama, selective", llama, Strategy(micro_batch=4, recompute="selective")),
        Case("Llama, bf16, recomputed", llama, Strategy(micro_batch=4, precision="bf16", recompute="full")),
        Case("ViT, adamw", _vit(), Strategy(micro_batch=8), convolutions=True),
        Case("ResNet-50, momentum", _resnet(), Strategy(micro_batch=4, optimizer="momentum"), convolutions=True),
        Case("UNet, adamw", _unet(), Strategy(micro_batch=1), convolutions=True),
    ]


def _mlp() -> Job:
    config = MlpConfig(features=256, hidden=(1024, 512), classes=10)
    return Job(model=lambda: Mlp(config), batch=partial(table_batch, features=256, classes=10), loss=class_loss)


def _language(model: Callable[[], torch.nn.Module], batch: Callable[..., object]) -> Job:
    return Job(model=model, batch=partial(batch, vocabulary=VOCABULARY, seq_len=SEQ_LEN), loss=token_loss)


def _bert() -> Job:
    return _language(lambda: Bert(BertConfig(vocabulary=VOCABULARY, width=256, layers=4, heads=4)), masked_word_batch)


def _gpt() -> Job:
    return _language(lambda: Gpt2(Gpt2Config(vocabulary=VOCABULARY, width=256, layers=4, heads=4)), next_token_batch)


def _llama() -> Job:
    config = LlamaConfig(vocabulary=VOCABULARY, width=256, layers=4, heads=4, kv_heads=2, hidden=768)
    return _language(lambda: Llama(config), next_token_batch)


def _vit() -> Job:
    config = VitConfig(image_size=64, patch=16, width=256, layers=4, heads=4, hidden=1024, classes=100)
    return Job(model=lambda: Vit(config), batch=partial(image_batch, image_size=64, classes=100), loss=class_loss)


def _resnet() -> Job:
    return Job(model=ResNet, batch=partial(image_batch, image_size=64), loss=class_loss)


def _unet() -> Job:
    config = UnetConfig(levels=(32, 64, 64), heads=2, context=64)
    return Job(model=lambda: Unet(config), batch=partial(diffusion_batch, latent_size=16, context=64), loss=diffusion_loss)


def predicted_bytes(trace: Trace) -> int:
    """Peak of one micro-batch and the optimizer, in bytes as requested."""
    sequence, storages = trace.sequence, trace.storages
    runs = sequence.micro_step != 1
    alive = (storages.born < 0) | runs[np.maximum(storages.born, 0)]
    change = np.zeros(len(sequence) + 2, dtype=np.int64)
    np.add.at(change, np.maximum(storages.born[alive], 0), storages.size_bytes[alive])
    np.add.at(change, storages.died[alive] + 1, -storages.size_bytes[alive])
    return int(np.cumsum(change)[: len(sequence)][runs].max())


def measured_bytes(job: Job, strategy: Strategy) -> int:
    """Peak of the second real step: what is held before it, plus the profiler's allocations and frees."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # memory is the same, and small products do not wait for a busy machine
    try:
        return _measured_bytes(job, strategy)
    finally:
        torch.set_num_threads(threads)


def _measured_bytes(job: Job, strategy: Strategy) -> int:
    program = build(job, strategy, "cpu")
    program.forward_backward(checked_batch(job, strategy.micro_batch))
    program.update()
    held = _held_bytes(program)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        # Made inside: the profiler does not count the end of what began before it.
        program.forward_backward(checked_batch(job, strategy.micro_batch))
        program.update()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return held + int(np.cumsum([e.nbytes() for e in events]).max())


def _held_bytes(program: Program) -> int:
    assert program.optimizer is not None
    state = [t for values in program.optimizer.state.values() for t in values.values() if isinstance(t, torch.Tensor)]
    storages = [t.untyped_storage() for t in [*program.model.parameters(), *program.model.buffers(), *state]]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def relative_error(case: Case) -> tuple[int, int, float]:
    """Predicted bytes, measured bytes and the error of the first."""
    predicted = predicted_bytes(record(case.job, case.strategy, substrate="cpu"))
    measured = measured_bytes(case.job, case.strategy)
    return predicted, measured, predicted / measured - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="configurations whose name contains this text")
    only = parser.parse_args().only
    warnings.simplefilter("ignore")
    errors = {}
    print(f"{'configuration':<26} {'predicted':>14} {'measured':>14} {'error':>12}")
    for case in cases():
        if only.lower() in case.name.lower():
            predicted, measured, errors[case] = relative_error(case)
            print(f"{case.name:<26} {predicted:>14,} {measured:>14,} {errors[case]:>12.5%}")
    for title, wanted in (("all", (False, True)), ("without convolutions", (False,))):
        found = [abs(error) for case, error in errors.items() if case.convolutions in wanted]
        if found:
            print(f"{title}: median {statistics.median(found):.5%}, largest {max(found):.5%} of {len(found)}")


if __name__ == "__main__":
    main()
