"""Case: one published row as a job, a strategy and a chip of ours."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.fit.split import kept_out_model
from gpuwise.cost.inputs import READY, DataPipeline
from gpuwise.strategy import Strategy

# Names of published tables and chips of the catalog.
CHIPS = {
    "A100-80GB-SXM": "a100-80gb-sxm",
    "A100-40GB-SXM": "a100-40gb-sxm",
    "A100-40GB-SXM (AWS p4)": "a100-40gb-sxm",
    "A100-80GB-PCIe": "a100-80gb-pcie",
    "A100-40GB-PCIe": "a100-40gb-pcie",
    "H100-80GB-SXM": "h100-80gb-sxm",
    "H100-96GB-HBM2e-500W": "h100-96gb-hbm2e",
    "H100-80GB-PCIe": "h100-80gb-pcie",
    "A100-40GB": "a100-40gb-sxm",
    "A100-80GB": "a100-80gb-sxm",
    "H100-80GB": "h100-80gb-sxm",
    "V100-16GB": "v100-sxm2-16gb",
    "V100-32GB": "v100-sxm2-32gb",
    "V100": "v100-sxm2-16gb",  # of detectron2 (Big Basin), Swin Transformer
    "V100-32GB-PCIe": "v100-pcie-32gb",
    "T4": "t4",
    "P4-8GB": "p4",
    "L4-24GB": "l4",
    "MI210": "mi210",
    "MI100": "mi100",
    "RTX3090": "rtx-3090",
    "RTX4090": "rtx-4090",
    "RTX3080": "rtx-3080",
    "RTX3070": "rtx-3070",
    "RTX2080Ti": "rtx-2080-ti",
    "TITAN-RTX": "titan-rtx",
    "GTX1080Ti": "gtx-1080-ti",
    "RTX-A6000": "rtx-a6000",
    "RTX-A5000": "rtx-a5000",
    "RTX-A4000": "rtx-a4000",
    "QuadroRTX6000": "quadro-rtx-6000",
    "A40-48GB": "a40",
    "A10-24GB": "a10",
    "RTX6000-Ada": "rtx-6000-ada",
    "RTX-A4500": "rtx-a4500",
    "RTX-A5500": "rtx-a5500",
    "QuadroRTX5000": "quadro-rtx-5000",
    "QuadroRTX8000": "quadro-rtx-8000",
    "RTX2070-MaxQ": "rtx-2070-max-q",
    "RTX2080-MaxQ": "rtx-2080-max-q",
    "B200": "b200-180gb-sxm",
    "B200-192GB": "b200-180gb-sxm",
    "TITAN-V": "titan-v",
    "GTX1080": "gtx-1080",
}
# Published names of one architecture, so that it is kept out of a fit or not as a whole.
SAME_MODEL = {"bert-large-qa": "bert_large", "bert_large-classify": "bert_large"}


@dataclass(frozen=True)
class Case:
    """One published row. job: what `job_of` understands; seq_len or image_size goes to the trace.

    half: the whole model ran in fp16 (apex's O2; recorded in bf16). fast_norm: timm's norms computed in half precision under
    autocast. update: whether the timed step updated parameters; where not, it is a forward and a backward pass that adds to
    gradients. update_bytes: bytes that it moved a parameter to update it, with zeroing, adding up and clipping of gradients;
    0: as recorded. torch: its version, where the source has it. network: id of the link between
    machines, and serves: what it belongs to, a "device" or a "machine". peak_bytes: of one device, as its allocator counted
    them; None where not published. kernels: factors on the time of classes of kernels, by key of calibration files, where the
    run is known to have had others than PyTorch has today. data: how batches reach the device, where the measured program
    waits for them.
    """

    subset: str
    job: str
    strategy: Strategy
    size: tuple[tuple[str, int], ...]
    chip_id: str
    count: int
    machines: int
    seconds: float
    half: bool = False
    fast_norm: bool = False
    update: bool = True
    update_bytes: int = 0
    torch: str = ""
    network: str = ""
    serves: str = "device"
    peak_bytes: int | None = None
    kernels: tuple[tuple[str, float], ...] = ()
    data: DataPipeline = READY

    @property
    def model(self) -> str:
        """What it is kept out by."""
        name = self.job.removeprefix("timm:").removeprefix("hf-")
        return SAME_MODEL.get(name, name)

    @property
    def kept_out(self) -> bool:
        """Never seen by a fit of whole steps."""
        return kept_out_model(self.model)
