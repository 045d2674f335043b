"""One thread: tests of tiny models are faster without a pool, and do not slow each other down. No test meets the traces
that another process kept on disk. Prices have the age that they had on the day of the catalog's newest. Examples that
Hypothesis draws are the same in every run; `--hypothesis-profile=drawn` draws others."""

import os

os.environ["GPUWISE_NO_CACHE"] = "1"
os.environ["GPUWISE_TODAY"] = "2026-11-09"

try:
    import torch
except ImportError:  # the torch-free half is tested without it too
    pass
else:
    torch.set_num_threads(1)

try:
    from hypothesis import settings
except ImportError:  # some environments of tests/validators have none
    pass
else:
    settings.register_profile("pinned", derandomize=True, deadline=None)
    settings.register_profile("drawn", derandomize=False, deadline=None)
    settings.load_profile("pinned")
