"""What libraries say while they are imported and built, kept from the answer: it is no part of it, and often untrue here."""

from __future__ import annotations

import logging
import os

# Each tells of kernels that do not load (on a machine without the GPU they are for), of its own coming versions, or of calls to
# the hub that it tries again.
_LOGGERS = ("torchao", "bitsandbytes", "transformers", "huggingface_hub", "timm", "peft", "torch.utils._pytree", "httpx")
_SETTINGS = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "BITSANDBYTES_NOWELCOME": "1",
}


def quiet_libraries() -> None:
    """Errors alone from here on. A level or a variable that the user set stays as it is."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.ERROR)
