"""Names, paths and values of the user reach the pods' and machines' programs as they are: the emitted YAML is read and run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from tests.cloud_launches import FILES, job_of, plan_at, written
from tests.launch_samples import Call, Clients
from tests.odd_texts import FILE_NAMES, VALUES
from tests.stand_in_kubelet import mount_files


def run_as_written(to: str, documents: list[dict], out: Path, clients: Clients) -> list[Call]:
    """Runs what a pod or a machine would, with programs that write down how they were called."""
    if to == "skypilot":
        clients.run("bash", "-c", documents[0]["run"], cwd=out, SKYPILOT_NODE_IPS="10.0.0.1", SKYPILOT_NODE_RANK="0")
    else:
        pod = job_of(documents)["template"]["spec"]
        work, mounted = out.parent / "work", out.parent / "launch"
        work.mkdir()
        mount_files(mounted, documents[0], pod["volumes"][0]["configMap"]["items"])
        assert pod["containers"][0]["command"] == ["bash", "/launch/run.sh"]
        clients.run("bash", str(mounted / "run.sh"), cwd=work, JOB_COMPLETION_INDEX="0")
    return [call for call in clients.calls("python") if "train" in call.argv]


@pytest.mark.parametrize("to", FILES)
@settings(max_examples=12, deadline=None)
@given(stem=FILE_NAMES, run=FILE_NAMES, value=VALUES)
def test_no_shell_and_no_yaml_reads_a_users_words(to, stem, run, value):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = folder / "jobs" / f"{stem}.py"
        job.parent.mkdir()
        job.write_text("job = None\n")
        folder_of_run = f"/mnt/{run}".replace(":", "_")
        with patch("gpuwise.api.launching._check_job"):  # the file is no job, and loading one takes a second
            documents = written(
                plan_at(machines=2, job=f"{job}:job"), to, folder / "out", run=folder_of_run, name="a", env=[f"VALUE={value}"]
            )
        clients = Clients(folder / "clients", "python")
        [call] = run_as_written(to, documents, folder / "out", clients)
        dash = "./" if stem.startswith("-") else ""
        argv = ["train", f"{dash}{job.name}:job", "--plan", "plan.toml", "--run", folder_of_run]
        assert call.argv[call.argv.index("train") :] == argv
        assert call.value == value
        assert (Path(call.folder) / job.name).read_text() == "job = None\n"
        assert not list(folder.rglob("hacked"))
        if to != "skypilot":
            [container] = job_of(documents)["template"]["spec"]["containers"]
            assert [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "run"] == [folder_of_run]
