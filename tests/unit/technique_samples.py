"""Memory techniques as settings of the verbs."""

from __future__ import annotations

from typing import Any

MEMORY_TECHNIQUES: dict[str, dict[str, Any]] = {
    "in backward": {"optimizer_in_backward": True},
    "gradients kept": {"keep_gradients": True},
    "offloaded optimizer": {"offload": "optimizer"},
    "offloaded parameters": {"offload": "parameters"},
    "lora": {"adapter": "lora", "adapter_rank": 4},
    "qlora": {"adapter": "qlora", "adapter_rank": 4},
    "compiled": {"compile": True},
    "channels last": {"channels_last": True},
}
