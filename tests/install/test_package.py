"""A wheel and a source distribution hold one import package, which works where only its dependencies are installed."""

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from nadi import __version__
from nadi.launching.installation import source_hash
from tests.conftest import ROOMS

INFO = f"nadi-{__version__}.dist-info"

ROOT = Path(__file__).parents[2]
PLAN = ("plan", "--model", "gpt3-125m", "--cluster", "selene", "--gpus", "8", "--plan", "gb64", "--confirm", "0")
IMPORTS = """
import workload
import nadi
from nadi import et, partition, pdes, topologies
print(workload.WHOSE, nadi.__file__)
"""
SCRIPT = """
import nadi
run = nadi.simulate(
    workload={"model": "gpt3-125m", "plan": "tp2,pp2,dp2"},
    topology={"cluster": "selene"},
    network={"fidelity": "closed-form"},
)
assert run.finish_time_ps > 0
"""
RUN = """
[workload]
traces = "traces/transformer"
[topology]
spec = "ring:npus=4"
[compute]
gpu = "a100"
"""
TRACES = ("workload", "transformer", "--npus", "4", "--layers", "1", "--hidden", "64", "--heads", "2", "-o", "traces")


def said(*command, cwd):
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def needed(name):
    """Distributions that pip installs with one, without extras."""
    found, left = set(), [name]
    while left:
        wanted = {Requirement(text) for text in metadata.requires(left.pop()) or ()}
        new = {one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})} - found
        found |= new
        left += new
    return found


def linked(site, names):
    """Make installed distributions importable from another folder of packages."""
    for name in names:
        for file in metadata.files(name):
            top = file.parts[0]
            if top not in {"..", "__pycache__"} and not (site / top).exists():
                (site / top).symlink_to(Path(metadata.distribution(name).locate_file(top)))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The commit, a wheel of the tree, and one of the source distribution that is made of it."""
    out = tmp_path_factory.mktemp("built")
    commit = said("git", "rev-parse", "--short=12", "HEAD", cwd=ROOT).strip() if (ROOT / ".git").exists() else "unknown"
    wheel = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    said(*wheel, "-w", out / "tree", ROOT, cwd=out)
    said(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out, cwd=ROOT)
    said(*wheel, "-w", out / "sdist", *out.glob("*.tar.gz"), cwd=out)
    return commit, *out.glob("tree/*.whl"), *out.glob("sdist/*.whl")


def test_a_source_distribution_makes_the_wheel_of_the_tree(wheels):
    of_tree, of_sdist = ({one.filename: one.CRC for one in zipfile.ZipFile(wheel).infolist()} for wheel in wheels[1:])
    assert {name.split("/")[0] for name in of_tree} == {"nadi", INFO}
    assert {name for name, _ in of_tree.items() ^ of_sdist.items()} <= {f"{INFO}/RECORD"}


@pytest.fixture
def installed(tmp_path, monkeypatch, wheels):
    """A function that runs a program of an environment with the wheel, in a folder with files of the names of rooms."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    env, here = tmp_path / "env", tmp_path / "elsewhere"
    said(sys.executable, "-m", "venv", "--without-pip", env, cwd=tmp_path)
    (site,) = env.glob("lib/python*/site-packages")
    linked(site, needed("nadi"))
    there = {path.name for path in site.iterdir()}
    install = (sys.executable, "-m", "pip", "--python", env / "bin" / "python", "install", "--quiet")
    said(*install, "--no-deps", "--no-index", wheels[-1], cwd=tmp_path)
    assert {path.name for path in site.iterdir()} - there == {"nadi", INFO}
    here.mkdir()
    for name in ROOMS:
        (here / f"{name}.py").write_text('WHOSE = "the user\'s"\n')
    (here / "run.toml").write_text(RUN)
    return lambda program, *arguments: said(env / "bin" / program, *arguments, cwd=here), here, site / "nadi"


@pytest.mark.slow
def test_an_installed_wheel_offers_its_commands_outside_of_the_tree(installed, wheels):
    run, _, package = installed
    assert source_hash(package) == source_hash()
    assert run("python", "-c", IMPORTS.replace("\n", ";").strip(";")) == f"the user's {package / '__init__.py'}\n"
    assert run("nadi", "--version").endswith(f"(commit {wheels[0]})\n")
    run("nadi", *TRACES)
    assert "#SBATCH --nodes=1" in run("nadi", "slurm", "run.toml", "--nodes", "1", "--dry-run")


@pytest.mark.full
def test_an_installed_wheel_compiles_and_runs(tmp_path, monkeypatch, installed):
    monkeypatch.setenv("NADI_CACHE_DIR", str(tmp_path / "cache"))
    run, here, _ = installed
    (here / "script.py").write_text(SCRIPT)
    run("python", "script.py")
    run("nadi", *TRACES)
    run("nadi", "run", "run.toml", "--out", "results")
    run("nadi", "report", "results")
    assert (here / "results" / "report.html").exists()
    run("nadi", *PLAN, "-o", "plans")
    assert (here / "plans" / "plan.html").exists()


@pytest.mark.parametrize("room", ROOMS)
def test_a_checkout_offers_one_package(tmp_path, monkeypatch, room):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = f"import importlib.util as u; print(u.find_spec({room!r}), u.find_spec('nadi.{room}').origin)"
    missing, origin = said(sys.executable, "-c", code, cwd=tmp_path).split()
    assert (missing, Path(origin)) == ("None", ROOT / "nadi" / room / "__init__.py")
