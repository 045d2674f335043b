"""Bytes that published programs moved a parameter to update it: their optimizers were not the fused ones that are recorded.

Counted from their sources (NVIDIA/DeepLearningExamples; huggingface/pytorch-image-models), 4 bytes for every read and write of
a number in fp32. Before PyTorch 2.0 gradients were zeroed (4) and then added to (12).
"""

from __future__ import annotations

_ZEROED = 4 + 12
_CLIPPED = 4 + 8  # norm, scaling
_NVIDIA_EXAMPLES = {
    # torch.optim.SGD: weight decay, momentum twice, parameter.
    "resnet50": _ZEROED + 12 + 8 + 12 + 12,
    "ssd300": _ZEROED + 12 + 8 + 12 + 12,
    # BertAdam of optimization.py, an operator at a time: norm and scaling of the parameters, two moments, the step, weight
    # decay, learning rate, parameter.
    "bert-large-qa": _ZEROED + _CLIPPED + 4 + 16 + 20 + 20 + 28 + 20 + 8 + 20,
    # torch.optim.Adam of PyTorch 1.x, an operator at a time: two moments, root, two more passes over it, parameter.
    "gnmt": _ZEROED + 20 + 20 + 8 + 16 + 16,  # its job clips gradients
    # JITLamb of lamb.py: moments and step in one kernel, two norms, parameter.
    "transformer_xl": _ZEROED + _CLIPPED + 28 + 8 + 12,
}
# As a whole in half precision: recorded with fp32 copies of gradients, which are clipped. BERT ran a fused Adam.
_NVIDIA_EXAMPLES_IN_HALF = {"transformer_xl": 28 + 8 + 12}


def of_nvidia_examples(job: str, *, half: bool = False) -> int:
    """Of a step of NVIDIA's examples; 0 where it is recorded as it ran, or not known."""
    return (_NVIDIA_EXAMPLES_IN_HALF if half else _NVIDIA_EXAMPLES).get(job.removesuffix("-base").removesuffix("-large"), 0)


def of_timm(torch: str) -> int:
    """Of a training step of timm's benchmark.py: SGD with momentum and Nesterov's step in foreach kernels. Momentum is scaled
    (8) and added to (12), then the gradient (12) and the parameter (12). torch: its version."""
    return 8 + 12 + 12 + 12 + (_ZEROED if torch.startswith("1.") else 0)
