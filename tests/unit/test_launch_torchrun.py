"""torchrun's own parser reads the commands of a launch."""

from __future__ import annotations

import shlex

import pytest
from tests.launch_samples import sample_plan
from torch.distributed.run import get_args_parser

import gpuwise

RUNS = "python -m torch.distributed.run "


@pytest.mark.parametrize(
    ("to", "script", "settings"), [("torchrun", "launch.sh", ["master=node0:29501"]), ("ssh", "run.sh", ["hosts=a,b"])]
)
def test_torchrun_leaves_the_flags_of_train_alone(to: str, script: str, settings: list[str], tmp_path):
    """--run begins like torchrun's --run-path, and --plan and --run are not its own."""
    plan = sample_plan(devices=16, machines=2)
    gpuwise.launch(plan, to=to, output=tmp_path, run="/mnt/a run", set=settings)
    (line,) = [line for line in (tmp_path / script).read_text().splitlines() if line.startswith(RUNS) and "--help" not in line]
    words = shlex.split(line.removesuffix(" &").removeprefix(RUNS).replace('"${grace[@]}"', "--shutdown-timeout 30"))
    agent = get_args_parser().parse_args(words)
    assert (agent.module, agent.training_script) == (True, "gpuwise")
    assert agent.training_script_args == ["train", "gpt2", "--plan", "plan.toml", "--run", "/mnt/a run"]
    assert (agent.nnodes, agent.nproc_per_node, agent.shutdown_timeout) == ("2", "8", 30)
    assert agent.signals_to_handle.split(",") == ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"]
    assert agent.rdzv_endpoint == ("node0:29501" if to == "torchrun" else "a:29500")
