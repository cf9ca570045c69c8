"""``examples/cluster``: the batch script in a stand-in for SLURM, manifests against what their readers require."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from marft_algos.cli.training import typed_settings
from marft_algos.training import launch

FOLDER = Path(__file__).resolve().parents[2] / "examples/cluster"
SRUN = """#!{python}
# Starts the command once for each machine of the job, all of them here, as srun --ntasks-per-node 1 does.
import os, subprocess, sys
words = sys.argv[sys.argv.index("torchrun") :]
started = [subprocess.Popen(words, env={{**os.environ, "SLURM_NODEID": str(node)}}) for node in range(2)]
sys.exit(max(process.wait() for process in started))
"""
TORCHRUN = """#!{python}
import json, os, sys
with open(os.environ["SAID"], "a") as file:
    file.write(json.dumps([sys.argv[1:], os.environ["SLURM_NODEID"]]) + "\\n")
"""
SCONTROL = """#!{python}
import os, sys
if sys.argv[1] == "requeue":
    open(os.environ["SAID"], "a").write("requeue " + sys.argv[2] + "\\n")
else:
    print("127.0.0.1\\n127.0.0.2")
"""
SIGNALLED = """#!/usr/bin/env bash
# The job's time is nearly over: its shell is warned, and this step ends with an error.
[ -z "${{SAVES:-}}" ] || mkdir -p "$SLURM_SUBMIT_DIR/runs/marft-4711/checkpoints/step_000001"
sleep 30 &
trap 'kill $!; exit 1' TERM
kill -USR1 "$PPID"
wait
"""
SCANCEL = """#!{python}
import os, signal, sys
assert sys.argv[1:] == ["--signal", "TERM", "4711"]
shell = os.getppid()
for child in open(f"/proc/{{shell}}/task/{{shell}}/children").read().split():
    if int(child) != os.getpid():
        os.kill(int(child), signal.SIGTERM)
"""


def program(file: Path, text: str) -> None:
    file.write_text(text.format(python=sys.executable))
    file.chmod(0o755)


def sbatch(tmp_path: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the batch script as SLURM does on a job's first machine."""
    job = {
        **{"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "marft", "SLURM_NNODES": "2", "SLURM_NODEID": "0"},
        **{"SLURM_JOB_NODELIST": "127.0.0.[1-2]"},
        **{"SLURM_SUBMIT_DIR": str(tmp_path), "SAID": str(tmp_path / "said")},
        **{"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
    }
    command = ["bash", str(FOLDER / "slurm.sh"), *words]
    return subprocess.run(
        command, env={**os.environ, **job, **environ}, capture_output=True, text=True, check=False, timeout=500
    )


@pytest.fixture
def bin_(tmp_path: Path) -> Path:
    """Programs that the script finds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder / "srun", SRUN)
    program(folder / "scontrol", SCONTROL)
    return folder


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.sh")), ids=lambda script: script.name)
def test_scripts_can_be_read_by_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert os.access(script, os.X_OK)


def test_a_slurm_job_starts_a_launcher_on_each_machine_and_goes_on_when_it_is_queued_again(
    tmp_path: Path, bin_: Path
) -> None:
    program(bin_ / "torchrun", TORCHRUN)
    done = sbatch(tmp_path, "grpo", "--lr", "1e-5", SLURM_GPUS_ON_NODE="8")
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]
    place = ["--nnodes", "2", "--nproc-per-node", "8", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    place += ["--rdzv-id", "4711", "--rdzv-endpoint", "127.0.0.1:24711", "-m", "marft_algos", "train"]
    words = [*place, "grpo", "--lr", "1e-5", "--runs-dir", f"{tmp_path}/runs", "--name", "marft-4711"]
    assert sorted(said, key=lambda one: str(one[1])) == [[words, "0"], [words, "1"]]
    (tmp_path / "runs/marft-4711").mkdir(parents=True)
    (tmp_path / "runs/marft-4711/config.toml").touch()
    assert sbatch(tmp_path, "grpo").returncode == 0
    again = json.loads((tmp_path / "said").read_text().splitlines()[-1])[0]
    assert again[-3:] == ["train", "--resume", f"{tmp_path}/runs/marft-4711"]
    assert again[again.index("--nproc-per-node") + 1] == "1"


@pytest.mark.parametrize("saves", ["", "yes"])
def test_a_slurm_job_whose_time_is_nearly_over_is_queued_again_if_it_has_saved_something(
    tmp_path: Path, bin_: Path, saves: str
) -> None:
    program(bin_ / "srun", SIGNALLED)
    program(bin_ / "scancel", SCANCEL)
    assert sbatch(tmp_path, "grpo", SAVES=saves).returncode == 1
    said = tmp_path / "said"
    assert (said.read_text() if said.is_file() else "") == ("requeue 4711\n" if saves else "")


@pytest.mark.slow
def test_a_slurm_job_trains_on_two_launchers(tmp_path: Path, bin_: Path) -> None:
    program(bin_ / "torchrun", "#!{python}\nfrom torch.distributed.run import main\nmain()\n")
    few = ("--iterations", "1", "--episodes-per-iteration", "16", "--eval-episodes", "8", "--eval-every", "0")
    done = sbatch(tmp_path, *few)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("gain:") == 1, "rank 0 speaks for all"
    assert (tmp_path / "runs/marft-4711/checkpoints/step_000001/state.pt").is_file()


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


def command_is_understood(command: str) -> None:
    """``marft train`` of this checkout reads the words."""
    words = shlex.split(command)
    assert words[:2] == ["marft", "train"]
    config, _ = typed_settings(launch.take(words[2:])[0])
    assert config.name == "marft" and config.runs_dir == "/runs"


def pod_is_sound(template: dict[str, Any], mounted: bool) -> None:
    """A pod has one container with an image, and every volume that it mounts."""
    spec = template["spec"]
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    (container,) = spec["containers"]
    assert re.fullmatch(r"marft:\d+\.\d+\.\d+", container["image"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", [])}
    assert mounts.keys() == volumes and ("/runs" in mounts.values()) is mounted
    assert container["resources"]["limits"]["nvidia.com/gpu"].isdecimal()


def test_the_manifest_of_kuberay_has_what_it_requires() -> None:
    job = manifest("rayjob.yaml")
    assert (job["apiVersion"], job["kind"], job["metadata"]["name"]) == ("ray.io/v1", "RayJob", "marft")
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    command_is_understood(spec["entrypoint"])
    pod_is_sound(cluster["headGroupSpec"]["template"], mounted=True)
    (group,) = cluster["workerGroupSpecs"]
    pod_is_sound(group["template"], mounted=False)
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"] and group["groupName"]
    words = shlex.split(spec["entrypoint"])
    assert int(words[words.index("--workers") + 1]) == group["replicas"], "each worker has a machine"
    for parameters in (cluster["headGroupSpec"]["rayStartParams"], group["rayStartParams"]):
        assert all(isinstance(value, str) for value in parameters.values())
    assert cluster["authOptions"] == {"mode": "token"} and re.fullmatch(r"\d+\.\d+\.\d+", cluster["rayVersion"])


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, refusing what it does not name, as the server does with --validate=strict."""
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {name: strict(part) for name, part in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = strict(schema["additionalProperties"])
    if isinstance(schema.get("items"), dict):
        schema["items"] = strict(schema["items"])
    return schema


def test_the_manifest_of_kuberay_fits_the_schema_that_kuberay_publishes(shared_data: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    file = shared_data / "kuberay/ray.io_rayjobs.yaml"
    if not file.is_file():
        pytest.skip("needs ray-operator/config/crd/bases/ray.io_rayjobs.yaml of KubeRay in DATA/kuberay")
    definition = yaml.load(file.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = [one for one in definition["spec"]["versions"] if one["name"] == "v1"]
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = strict(schema["properties"]["spec"])
    job = manifest("rayjob.yaml")
    jsonschema.validate(job, schema)
    job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParam"] = {}
    with pytest.raises(jsonschema.ValidationError, match="rayStartParam"):
        jsonschema.validate(job, schema)


def test_the_job_of_kubernetes_meets_where_its_service_says() -> None:
    service, job = manifest("kubernetes.yaml")["items"]
    template = job["spec"]["template"]
    pod_is_sound(template, mounted=True)
    (container,) = template["spec"]["containers"]
    [script] = container["args"]
    subprocess.run(["bash", "-nc", script], check=True)
    found = re.search(r"--nnodes (\d+) --nproc-per-node (\d+) .*--rdzv-endpoint ([^\s:]+):\d+", script, re.DOTALL)
    assert found is not None
    assert int(found[2]) == int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert int(found[1]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    # An indexed job's pods are called NAME-0, NAME-1, …, below the subdomain that the service makes.
    assert found[3] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert job["spec"]["completionMode"] == "Indexed" and template["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    line = next(line for line in script.splitlines() if line.startswith("words="))
    command_is_understood(f"marft train {line.removeprefix('words=(').removesuffix(')')}")
