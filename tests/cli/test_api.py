"""`nadi.simulate` and `nadi.Run`: what `import nadi` offers."""

import subprocess
import sys

import pytest

import nadi as package
from nadi import schemas
from nadi.config import RunConfig

MODEL = {"model": "gpt3-125m", "plan": "tp2,pp2,dp2,gb4", "framework": "megatron"}
FABRIC = {"cluster": "selene"}


@pytest.fixture(scope="module")
def run():
    return package.simulate(workload=MODEL, topology=FABRIC, network={"fidelity": "closed-form"})


def test_a_run_has_what_the_command_writes(run, nadi, tmp_path):
    said = [
        "--model",
        "gpt3-125m",
        "--plan",
        "tp2,pp2,dp2,gb4",
        "--cluster",
        "selene",
        "--fidelity",
        "closed-form",
        "-q",
    ]
    assert nadi("run", *said, "--fidelity", "closed-form", "--out", tmp_path / "out", "-q").code == 0
    other = package.Run(tmp_path / "out")
    assert other.digest == run.digest
    assert other.finish_time_ps == run.finish_time_ps > 0
    assert other.collectives.equals(run.collectives)
    assert other.steps.equals(run.steps)
    assert "8 NPUs on selene" in repr(run)


def test_columns_of_steps_add_up_to_the_run(run):
    assert run.steps.schema == schemas.STEPS.arrow()
    times = run.steps.to_pandas().drop(columns="npu")
    assert (times.sum(axis=1) == run.finish_time_ps).all()


def test_fabric_and_program_are_made_again(run):
    assert run.graph.links == run.summary["links"]
    assert run.work.program.npus == 8
    assert isinstance(run.config, RunConfig)


def test_results_without_a_folder_go_with_the_run():
    folder = (
        made := package.simulate({"workload": MODEL, "topology": FABRIC}, network={"fidelity": "closed-form"})
    ).folder
    assert folder.is_dir()
    del made
    assert not folder.exists()


def test_values_beside_a_run_file_take_the_place_of_its_own(tmp_path, run):
    file = tmp_path / "run.toml"
    text = '[workload]\nmodel = "gpt3-125m"\nplan = "tp2,pp2,dp2,gb8"\n[topology]\ncluster = "selene"\n'
    file.write_text(text + '[network]\nfidelity = "closed-form"\n')
    assert package.simulate(file, workload={"plan": MODEL["plan"]}).digest == run.digest


@pytest.mark.parametrize("wrong", [{"network": {"mtus": 1}}, {"topology": {"cluster": "selen"}}])
def test_what_is_wrong_is_one_line(wrong):
    with pytest.raises(ValueError, match="nadi run: ") as caught:
        package.simulate({"workload": MODEL, "topology": FABRIC}, **wrong)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(package.ConfigError, match="expected results of `nadi run --out`"):
        package.Run(tmp_path)


HEAVY = {"numba", "pyarrow", "numpy", "pandas", "pydantic", "rich", "networkx", "pdes", "et", "topologies", "workload"}


def test_importing_is_light():
    said = subprocess.run(
        [sys.executable, "-c", f"import sys, nadi; print({HEAVY} & {{*sys.modules}})"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.stdout.strip() == "set()"
