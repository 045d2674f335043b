"""Keeps the messages of libraries out of the output: they are printed at import and build, and are often untrue here."""

from __future__ import annotations

import logging
import os

# Messages of kernels that do not load (without the GPU they are for), of coming versions, and of calls to the hub that are
# repeated.
_LOGGERS = ("torchao", "bitsandbytes", "transformers", "huggingface_hub", "timm", "peft", "torch.utils._pytree", "httpx")
_SETTINGS = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "BITSANDBYTES_NOWELCOME": "1",
}


def silence_libraries() -> None:
    """From here on libraries log errors alone. A level or an environment variable that the user set stays as it is."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.ERROR)
