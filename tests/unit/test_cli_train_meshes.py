"""`gpuwise train --mesh` with a mesh that the job, the machine or the launcher does not have: refused before a rank starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner, Result

import gpuwise.cli.ranks
import gpuwise.runtime.devices
from gpuwise.cli.main import main

JOBS = """
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from gpuwise import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig

SIZES = {"vocabulary": 64, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 64}
ATTENTION = {"q": "colwise", "k": "colwise", "v": "colwise", "out": "rowwise"}

batch = partial(next_token_batch, vocabulary=64, seq_len=16)
llama = Job(lambda: Llama(LlamaConfig(**SIZES)), batch, token_loss, name="llama", seq_len=16)
mixtral = replace(llama, model=lambda: Mixtral(MixtralConfig(experts=4, **SIZES)))
no_module = replace(llama, tensor_parallel_plan={"layers.*.attn.q": "colwise"})
by_heads = replace(llama, tensor_parallel_plan={f"layers.*.attention.{name}": word for name, word in ATTENTION.items()})
whole = replace(llama, tensor_parallel_plan={"layers.*.mlp.up": "colwise_gather_output"})
rows = Job(
    lambda: nn.Linear(4, 1), lambda n: {"x": torch.randn(n, 4)}, lambda model, batch: model(batch["x"]).square().mean()
)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of ranks that were to be started; none is."""
    numbers: list[int] = []

    def start(arguments: object, ranks: int, **settings: object) -> int:
        numbers.append(ranks)
        return 0

    monkeypatch.setattr(gpuwise.cli.ranks, "start", start)
    return numbers


def train(job: str, mesh: str, *flags: str) -> Result:
    return CliRunner().invoke(main, ["train", f"jobs.py:{job}", "--mesh", mesh, "--micro-batch", "4", *flags])


@pytest.mark.parametrize(
    ("job", "mesh", "flags", "words"),
    [
        ("rows", "dp=0", "", "mesh dp_replicate"),
        ("rows", "dp=2,dp=2", "", "cannot read mesh"),
        ("rows", "dp=2,xp=2", "", "cannot read mesh"),
        ("no_module", "tp=2", "", "names 'layers.*.attn.q', but the model has no such module"),
        ("by_heads", "tp=4", "", "over 4 devices does not divide the 2 heads of 'layers.0.attention.k'"),
        ("whole", "tp=3", "", "over 3 devices does not divide the 64 outputs of 'layers.0.mlp.up'"),
        ("llama", "tp=4", "", "over 4 devices does not divide the 2 heads of 'layers.0.attention.k'"),
        ("llama", "tp=3", "", "over 3 devices divides no layer of Llama; 'layers.0.attention.q' has 32 features"),
        ("rows", "tp=2", "", "Linear has no linear layers that tensor parallelism could split"),
        ("llama", "pp=3", "--accumulate 3", "the model has 2 repeated blocks, fewer than the 3 stages"),
        ("llama", "pp=2", "--accumulate 4 --pipeline-schedule interleaved-1f1b --stages-per-rank 2", "fewer than the 4 stages"),
        ("llama", "pp=2", "--accumulate 1", "needs at least 2 micro-batches a step"),
        ("rows", "pp=2", "--accumulate 2", "Linear has no repeated blocks"),
        ("mixtral", "dp_shard=3,ep=3", "", "over 3 devices does not divide 4 experts"),
        ("mixtral", "dp_shard=4,ep=3", "", "ep divides dp_shard"),
        ("llama", "dp_shard=2,ep=2", "", "Llama has no mixture whose experts could be split"),
        ("llama", "cp=3", "", "over 3 devices does not divide sequences of 16"),
        ("rows", "cp=2", "", "has no sequences for context parallelism to split"),
        ("llama", "tp=2,cp=16", "--sequence-parallel", "sequence parallelism over 2 devices does not divide sequences of 1"),
    ],
)
def test_a_mesh_that_does_not_divide_the_job_starts_no_rank(
    job: str, mesh: str, flags: str, words: str, folder: Path, started: list[int]
):
    ended = train(job, mesh, *flags.split())
    assert ended.exit_code == 2, ended.output
    assert words in ended.stderr
    assert "  try: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert started == []
    assert [path.name for path in folder.iterdir() if path.name != "__pycache__"] == ["jobs.py"]


@pytest.mark.parametrize(
    ("job", "mesh", "flags", "ranks"),
    [
        ("llama", "tp=2", "--sequence-parallel", 2),
        ("by_heads", "dp_shard=2,tp=2", "", 4),
        ("whole", "tp=4", "", 4),
        ("llama", "pp=2", "--accumulate 2", 2),
        ("mixtral", "dp_shard=4,ep=4", "", 4),
        ("llama", "cp=8", "", 8),
        ("rows", "dp=3", "", 3),
    ],
)
def test_a_mesh_that_divides_the_job_starts_its_ranks(job: str, mesh: str, flags: str, ranks: int, started: list[int]):
    assert train(job, mesh, *flags.split()).exit_code == 0
    assert started == [ranks]


def test_replicas_and_shards_start_without_the_jobs_file(folder: Path, started: list[int]):
    """Any model has them, and the file may take long."""
    (folder / "jobs.py").write_text("raise RuntimeError('loaded')")
    assert train("rows", "dp=2,dp_shard=2").exit_code == 0
    assert started == [4]


def test_a_file_that_is_written_for_ranks_is_left_to_them(folder: Path, started: list[int]):
    (folder / "jobs.py").write_text(f"import os\nrank = os.environ['RANK']\n{JOBS}")
    assert train("llama", "tp=2").exit_code == 0
    assert started == [2]


def test_more_ranks_than_accelerators_are_refused(monkeypatch: pytest.MonkeyPatch, started: list[int]):
    monkeypatch.setattr(gpuwise.runtime.devices, "accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(gpuwise.runtime.devices, "backend_of", lambda device: SimpleNamespace(count=lambda: 2))
    ended = train("rows", "dp=4")
    assert ended.exit_code == 2
    assert "the mesh dp=4 is of 4 devices; this machine has 2 of type cuda" in ended.stderr
    assert "--mesh dp=2" in ended.stderr
    assert started == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "1"}, "WORLD_SIZE is not set"),
        ({"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}, "the mesh dp=2 is of 2 devices, and the launcher has"),
    ],
)
def test_ranks_of_a_launcher_that_do_not_make_up_the_mesh_are_refused(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch, folder: Path, started: list[int]
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ended = train("rows", "dp=2")
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert started == []
    assert not (folder / "runs").exists()
