"""Launches on clouds and Kubernetes: plans for an offer, their files as data, and what becomes of a user's words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from tests.launch_samples import sample_plan

import gpuwise
from gpuwise.launch_settings import LaunchSettings
from gpuwise.plan import Plan

IMAGE = "ghcr.io/team/net:1.0"
FILES = {"skypilot": "task.yaml", "kubernetes": "jobset.yaml", "kubeflow": "trainjob.yaml"}
AWS = {"provider": "aws", "instance": "p5.48xlarge", "region": "us-east-1"}


def plan_at(
    *, machines: int = 1, devices: int = 8, chip: str = "h100-80gb-sxm", cpu: bool = False, job: str = "gpt2", **offer: Any
) -> Plan:
    """GPT-2 on one offer, whose fields these are; devices are those of each machine."""
    plan = sample_plan(devices=devices * machines, machines=machines, cpu=cpu, job=job)
    return replace(plan, device=chip, offer=replace(plan.offer, chip_id=chip, **{**AWS, **offer}))


def written(plan: Plan, to: str, folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """The documents of a launch."""
    options: LaunchSettings = {"set": ["volume=runs"], **settings}  # type: ignore[typeddict-item]
    if to != "skypilot":
        options = {"image": IMAGE, **options}  # type: ignore[assignment, typeddict-item]
    gpuwise.launch(plan, to=to, output=folder, **options)
    return list(yaml.safe_load_all((folder / FILES[to]).read_text()))


def job_of(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The Job's spec in a JobSet or in the runtime of a TrainJob."""
    spec = documents[1]["spec"]
    jobset = spec["template"]["spec"] if documents[1]["kind"] == "TrainingRuntime" else spec
    [replicated] = jobset["replicatedJobs"]
    return {**replicated["template"]["spec"], "failurePolicy": jobset["failurePolicy"]}
