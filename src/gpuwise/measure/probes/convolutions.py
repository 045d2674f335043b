"""Convolutions as image networks have them: the cases that the sweep of `kernels` takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from gpuwise.measure.probes.cases import Case, Noise, ProbeKernel, agree, backward_of, positions, work_of

# in_channels, out_channels, side of the image, kernel_size, stride, groups, the most telling first: the layers of ResNet-50
# (He et al., arXiv:1512.03385, table 1) and depthwise ones of MobileNetV2 (Sandler et al., arXiv:1801.04381, table 2).
_LAYERS = {
    "3×3 at 28": (128, 128, 28, 3, 1, 1),
    "1×1 at 56": (256, 64, 56, 1, 1, 1),
    "depthwise at 56": (144, 144, 56, 3, 1, 144),
    "stem": (3, 64, 224, 7, 2, 1),
    "3×3 at 56": (64, 64, 56, 3, 1, 1),
    "3×3 at 14": (256, 256, 14, 3, 1, 1),
    "3×3 at 7": (512, 512, 7, 3, 1, 1),
    "1×1 at 14": (1024, 256, 14, 1, 1, 1),
    "depthwise at 14": (576, 576, 14, 3, 1, 576),
}
_FORWARD, _BACKWARD, _LAST = "convolution", "convolution, backward", "convolution, channels last"
_CASES = (
    (_FORWARD, "3×3 at 28"),
    (_BACKWARD, "3×3 at 28"),
    (_FORWARD, "1×1 at 56"),
    (_FORWARD, "stem"),
    (_FORWARD, "depthwise at 56"),
    (_LAST, "3×3 at 28"),
    (_FORWARD, "3×3 at 56"),
    (_FORWARD, "3×3 at 14"),
    (_FORWARD, "3×3 at 7"),
    (_BACKWARD, "1×1 at 56"),
    (_BACKWARD, "3×3 at 56"),
    (_BACKWARD, "3×3 at 14"),
    (_BACKWARD, "depthwise at 56"),
    (_FORWARD, "1×1 at 14"),
    (_BACKWARD, "3×3 at 7"),
    (_FORWARD, "depthwise at 14"),
)
_BATCH = 4


def convolutions(dtypes: Sequence[str]) -> Iterator[Case]:
    """Cases of group "conv". The backward pass gives the gradients of image and weight."""
    for name, layer in _CASES:
        inside, outside, side, kernel, stride, groups = _LAYERS[layer]
        sizes = {
            "batch": _BATCH,
            "in_channels": inside,
            "out_channels": outside,
            "height": side,
            "width": side,
            "kernel_size": kernel,
            "stride": stride,
            "groups": groups,
        }
        kind = "conv_backward" if name == _BACKWARD else "conv"
        for dtype in dtypes:
            yield Case("conv", name, dtype, sizes, "batch", work_of(kind, dtype), partial(_convolution, dtype, name))


def _convolution(dtype: str, name: str, noise: Noise, sizes: Mapping[str, int]) -> ProbeKernel:
    """Groups are one, or as many as channels."""
    batch, inside, outside, groups = (sizes[size] for size in ("batch", "in_channels", "out_channels", "groups"))
    image, kernel, depthwise = (sizes["height"], sizes["width"]), (sizes["kernel_size"],) * 2, groups > 1
    stride, padding = sizes["stride"], sizes["kernel_size"] // 2
    x, w = noise(batch, inside, *image, dtype=dtype), noise(outside, inside // groups, *kernel, dtype=dtype)
    if name == _LAST:
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
    ins, outs = positions(inside, noise.device), positions(outside, noise.device)

    def forward() -> torch.Tensor:
        return F.conv2d(x, w, None, stride, padding, 1, groups)

    def forward_correct() -> bool:
        """The first image, some channels of the result."""
        seen = x[:1, outs] if depthwise else x[:1]
        exact = F.conv2d(seen.double(), w[outs].double(), None, stride, padding, 1, len(outs) if depthwise else 1)
        return agree(forward()[:1, outs], exact, dtype)

    if name != _BACKWARD:
        return ProbeKernel(forward, forward_correct)
    x.requires_grad_()
    w.requires_grad_()
    out = forward()
    grad = noise(*out.shape, dtype=dtype)
    run = backward_of(out, (x, w), grad)

    def correct() -> bool:
        """Some channels: those of the first image, and of the weight over all images."""
        with torch.no_grad():
            gx, gw = run()
            few = {"stride": stride, "padding": padding, "groups": len(ins) if depthwise else 1}
            above, weight = (grad[:1, ins], w[ins]) if depthwise else (grad[:1], w[:, ins])
            exact = conv2d_input((1, len(ins), *image), weight.double(), above.double(), **few)
            shape = (len(outs), 1 if depthwise else len(ins), *kernel)
            exact_weight = conv2d_weight(x[:, ins].double(), shape, grad[:, outs].double(), **few)
            found_weight = gw[outs] if depthwise else gw[outs][:, ins]
            return agree(gx[:1, ins], exact, dtype) and agree(found_weight, exact_weight, dtype)

    return ProbeKernel(run, correct)
