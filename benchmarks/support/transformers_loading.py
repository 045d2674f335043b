"""What Transformers, bitsandbytes and peft allocate and free on a GPU while they make a QLoRA model, in their order.

`from_pretrained` with a BitsAndBytesConfig, `prepare_model_for_kbit_training`, then `get_peft_model`, as read from transformers
5.24 (modeling_utils.py: caching_allocator_warmup; core_model_loading.py: convert_and_load_state_dict_in_model;
integrations/bitsandbytes.py: Bnb4bitQuantize) and peft 0.21 (utils/other.py). Packing is that of the bitsandbytes installed.

Weights come one after another since Transformers loads in order what it quantizes. Transformers 5.0 copied the next ones in
threads meanwhile, in an order that differs from run to run.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpuwise.trace import Loading, LoadingLog

BYTES_PER_PACKED_WEIGHT = 0.5  # param_element_size of quantizers/quantizer_bnb_4bit.py


@dataclass(frozen=True)
class Loaded:
    """How a model is loaded.

    Attributes:
        model: the model as its checkpoint has it, on the meta device, in the dtype that it is loaded in.
        packed: paths of the layers in 4 bits.
        double_quantized: whether their scales are quantized, too.
        adapter_rank: rank of the adapters, which are in fp32.
        adapted: the last parts of the paths of layers that have one.
    """

    model: nn.Module
    packed: Collection[str]
    double_quantized: bool
    adapter_rank: int
    adapted: Collection[str]


def loading_of(loaded: Loaded) -> Loading:
    """The allocations on the device until the model is made."""
    with _Allocations() as allocations:
        weights, states = _weights(loaded)
        for name, buffer in loaded.model.named_buffers():
            weights[name] = _empty(buffer.shape, buffer.dtype)
        for name in [name for name, _ in loaded.model.named_parameters() if name not in states]:
            weights[name] = _empty(weights[name].shape, torch.float32)
        adapters = list(_adapters(loaded))
        loading = allocations.log.loading()
    del weights, states, adapters
    return loading


def _weights(loaded: Loaded) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights on the device, and the quantization states of those that are packed."""
    from bitsandbytes.functional import quantize_4bit
    from transformers.core_model_loading import dot_natural_key

    parameters = dict(loaded.model.named_parameters())
    packed = {f"{path}.weight" for path in loaded.packed}
    counted = sum(
        p.numel() * (BYTES_PER_PACKED_WEIGHT if name in packed else p.element_size()) for name, p in parameters.items()
    )
    _empty([int(counted // 2)], torch.float16)  # one segment for all of it, which is freed at once
    weights, states = dict[str, Tensor](), dict[str, Any]()
    for name in sorted(parameters, key=dot_natural_key):
        weights[name] = _empty(parameters[name].shape, parameters[name].dtype)
        if name in packed:
            weights[name], states[name] = quantize_4bit(
                weights[name], quant_type="nf4", compress_statistics=loaded.double_quantized
            )
    return weights, states


def _adapters(loaded: Loaded) -> Iterator[Tensor]:
    for path, module in loaded.model.named_modules():
        if isinstance(module, nn.Linear) and path.rpartition(".")[2] in loaded.adapted:
            yield _empty([loaded.adapter_rank, module.in_features], torch.float32)
            yield _empty([module.out_features, loaded.adapter_rank], torch.float32)


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class _Allocations(TorchDispatchMode):
    """Notes the storages on the meta device as they are made and freed."""

    def __init__(self) -> None:
        super().__init__()
        self.log = LoadingLog()
        self._alive: dict[int, int] = {}  # by the address of a storage: its number in the log

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.device.type == "meta":
                storage = tensor.untyped_storage()
                if storage._cdata not in self._alive:
                    self._alive[storage._cdata] = self.log.allocate(storage.nbytes())
                    weakref.finalize(storage, self._free, storage._cdata)
        return out

    def _free(self, address: int) -> None:
        self.log.free(self._alive.pop(address))
