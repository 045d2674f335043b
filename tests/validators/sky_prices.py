"""SkyPilot with price lists of our own in the place of those that it fetches: what would it buy?

The lists have the columns of SkyPilot's catalog v8. Beside the row that a plan is for stand cheaper ones of other chips,
regions and sizes, and rows of other chips under the same name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

# By cloud: instance, SkyPilot's name of the accelerator, count, dollars an hour, spot dollars, region, zone.
Row = tuple[str, str, float, float, float, str, str]
ROWS: dict[str, list[Row]] = {
    "aws": [
        ("p5.48xlarge", "H100", 8, 55.04, 21.1543, "us-east-1", "us-east-1a"),
        ("p5.48xlarge", "H100", 8, 50.0, 16.2, "us-west-2", "us-west-2a"),
        ("p5.4xlarge", "H100", 1, 6.88, 2.7, "us-east-1", "us-east-1a"),
        ("p4d.24xlarge", "A100", 8, 21.97, 9.1, "us-east-1", "us-east-1a"),
        ("p4de.24xlarge", "A100-80GB", 8, 27.45, 8.1, "us-east-1", "us-east-1a"),
        ("g6.xlarge", "L4", 1, 0.80, 0.3, "us-east-1", "us-east-1a"),
        ("g6.2xlarge", "L4", 1, 0.98, 0.4, "us-east-1", "us-east-1a"),
        ("m7i.4xlarge", "", 0, 0.81, 0.3, "us-east-1", "us-east-1a"),
    ],
    "gcp": [
        ("a3-highgpu-8g", "", 0, 8.0, 4.0, "us-central1", "us-central1-a"),
        ("a3-megagpu-8g", "", 0, 9.0, 5.0, "us-central1", "us-central1-a"),
        ("n1-standard-8", "", 0, 0.38, 0.08, "us-central1", "us-central1-a"),
        ("n1-standard-4", "", 0, 0.19, 0.04, "us-central1", "us-central1-a"),
        ("", "H100", 8, 80.0, 20.0, "us-central1", "us-central1-a"),
        ("", "H100-MEGA", 8, 84.0, 22.0, "us-central1", "us-central1-a"),
        ("", "T4", 1, 0.35, 0.14, "us-central1", "us-central1-a"),
    ],
    "azure": [
        ("Standard_ND96isr_H100_v5", "H100", 8, 98.32, 39.0, "eastus", ""),
        ("Standard_NC40ads_H100_v5", "H100", 1, 6.98, 2.8, "eastus", ""),
        ("Standard_NC80adis_H100_v5", "H100", 2, 13.96, 5.6, "eastus", ""),
        ("Standard_NC24ads_A100_v4", "A100-80GB", 1, 3.67, 0.7, "eastus", ""),
    ],
    "lambda": [
        ("gpu_1x_h100_pcie", "H100", 1, 2.49, 0, "us-east-1", ""),
        ("gpu_1x_h100_sxm5", "H100", 1, 3.29, 0, "us-east-1", ""),
        ("gpu_8x_a100", "A100", 8, 10.32, 0, "us-east-1", ""),
    ],
    "nebius": [
        ("gpu-h100-sxm_8gpu-128vcpu-1600gb", "H100", 8, 23.6, 10.0, "eu-north1", ""),
        ("gpu-h100-sxm_1gpu-16vcpu-200gb", "H100", 1, 2.95, 1.25, "eu-north1", ""),
        ("gpu-l40s-d_4gpu-192vcpu-1152gb", "L40S", 4, 11.0, 5.0, "eu-north1", ""),
        ("gpu-l40s-d_4gpu-128vcpu-768gb", "L40S", 4, 9.1, 4.0, "eu-north1", ""),
    ],
    "runpod": [
        ("2x_H100-SXM_SECURE", "H100-SXM", 2, 5.98, 3.5, "US", "US-CA-2"),
        ("2x_H100_SECURE", "H100", 2, 4.78, 2.5, "US", "US-CA-2"),
        ("2x_H100-NVL_SECURE", "H100-NVL", 2, 5.58, 3.3, "US", "US-CA-2"),
    ],
}  # fmt: skip
_COLUMNS = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region"
_MORE = {"aws": ",AvailabilityZone,Arch", "gcp": ",AvailabilityZone", "runpod": ",AvailabilityZone", "azure": ",Generation"}


def write_lists(home: Path) -> None:
    """Puts the lists where SkyPilot keeps those that it has fetched."""
    folder = home / ".sky" / "catalogs" / "v8"
    names: dict[str, set[str]] = {}
    for cloud, rows in ROWS.items():
        (folder / cloud).mkdir(parents=True)
        lines = [_COLUMNS + _MORE.get(cloud, "")]
        for instance, name, count, usd, spot_usd, region, zone in rows:
            names.setdefault(name, set()).add(cloud)
            info = f"\"{{'Gpus': [{{'Name': '{name}', 'MemoryInfo': {{'SizeInMiB': 81920}}}}]}}\"" if name else ""
            gpu = f"{name},{count:.1f}" if name else ","
            host = f"{32 * max(count, 1)},{256 * max(count, 1)}" if instance else ","
            last = {"aws": f",{zone},x86_64", "azure": ",V2"}.get(cloud, f",{zone}" if zone else "")
            lines.append(f"{instance},{gpu},{host},{info},{usd},{spot_usd or ''},{region}{last}")
        (folder / cloud / "vms.csv").write_text("\n".join(lines) + "\n")
    (folder / "common").mkdir()
    rows_of_names = [f'{name},"{sorted(clouds)}"' for name, clouds in names.items() if name]
    (folder / "common" / "accelerators.csv").write_text("\n".join(["AcceleratorName,Clouds", *rows_of_names]) + "\n")


def chosen(folder: Path) -> Any:
    """The resources that SkyPilot's optimizer chooses for the task of a launch, and their dollars an hour for all machines."""
    import sky
    from sky import check, optimizer
    from sky.catalog import aws_catalog

    clouds = [sky.AWS(), sky.GCP(), sky.Azure(), sky.Lambda(), sky.Nebius(), sky.RunPod()]
    here = os.getcwd()
    os.chdir(folder)
    try:
        task = sky.Task.from_yaml("task.yaml")
    finally:
        os.chdir(here)
    with (
        mock.patch.object(check, "get_cached_enabled_clouds_or_refresh", return_value=clouds),
        mock.patch.object(aws_catalog, "_fetch_and_apply_az_mapping", side_effect=lambda rows: rows._load_df()),  # asks AWS
    ):
        with sky.Dag() as dag:
            dag.add(task)
        best = optimizer.Optimizer.optimize(dag, quiet=True).tasks[0].best_resources
    return best, best.get_cost(3600) * task.num_nodes
