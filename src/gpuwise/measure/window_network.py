"""A small transformer with attention within windows, for `measure` to observe: many small products, copies with short rows,
rolled images and depthwise convolutions of tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class WindowAttention(nn.Module):
    """Attention among the tokens of a window, with a learned bias for each pair of positions (Liu et al., "Swin Transformer",
    ICCV 2021). Images (n, side, side, width); `shift` rolls them first and back."""

    def __init__(self, width: int, heads: int, window: int, shift: int):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(1, heads, window**2, window**2))

    def forward(self, x: Tensor) -> Tensor:
        n, side, _, width = x.shape
        count, w = side // self.window, self.window
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        windows = x.view(n, count, w, count, w, width).transpose(2, 3).reshape(-1, w * w, width)
        q, k, v = self.qkv(windows).view(-1, w * w, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, attn_mask=self.bias).transpose(1, 2).reshape(-1, w * w, width)
        y = self.out(y).view(n, count, count, w, w, width).transpose(2, 3).reshape(n, side, side, width)
        return torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y


class WindowBlock(nn.Module):
    """Positions by a depthwise convolution of tokens (Chu et al., "Conditional Positional Encodings", ICLR 2023), attention
    within windows, and a perceptron, each with a residual connection."""

    def __init__(self, width: int, heads: int, window: int, shift: int):
        super().__init__()
        self.positions = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.attention = nn.Sequential(nn.LayerNorm(width), WindowAttention(width, heads, window, shift))
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = x + self.attention(x)
        y: Tensor = x + self.inner(x)
        return y


class WindowNet(nn.Module):
    """Images (n, 3, size, size) -> logits (n, classes). Patches of 4 x 4, two levels of two blocks; between them four
    neighbours are joined to one token of twice the width. windows: sides of the windows of both levels."""

    def __init__(self, *, width: int, heads: int, windows: tuple[int, int], classes: int):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.fine = nn.Sequential(*[WindowBlock(width, heads, windows[0], shift) for shift in (0, windows[0] // 2)])
        self.join = nn.Sequential(nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width))
        self.coarse = nn.Sequential(*[WindowBlock(2 * width, 2 * heads, windows[1], shift) for shift in (0, windows[1] // 2)])
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.fine(self.patches(images).permute(0, 2, 3, 1))
        parts = [x[:, row::2, column::2] for row in (0, 1) for column in (0, 1)]
        logits: Tensor = self.head(self.coarse(self.join(torch.cat(parts, -1))).mean((1, 2)))
        return logits
