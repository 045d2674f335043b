"""One thread: tests of tiny models are faster without a pool, and do not slow each other down. No test meets the traces
that another process kept on disk."""

import os

os.environ["GPUWISE_NO_CACHE"] = "1"

try:
    import torch
except ImportError:  # the torch-free half is tested without it too
    pass
else:
    torch.set_num_threads(1)
