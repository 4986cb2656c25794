"""A configuration becomes a plan once; what runs it decides nothing, and no other module reads it."""

import ast
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

import nadi as package
from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import load_config
from nadi.launching.progress import NoProgress
from nadi.pdes import parallel
from nadi.simulation.resolving import Resolver
from nadi.simulation.run import RunPlan, execute
from tests.features.restarting import after, often
from tests.nonempty import nonempty

READERS = {
    "nadi/configuration/conditions.py",
    "nadi/configuration/effects.py",
    "nadi/insight/run_analysis.py",
    "nadi/simulation/resolving.py",
    "nadi/simulation/assembly/reading.py",
}
"""Modules that read sections of a configuration."""
TAKERS = {
    "effects.without_effect_in_all",
    "input_files.files_read",
    "points._name",
    "reading.of",
    "resolving._compared",
    "runs.__init__",
    "files.write_run_file",
}
"""Functions that take a whole configuration, beside the classes that hold one."""
SECTIONS = set(RunConfig.model_fields)
HOLDERS = {"config", "single"}
"""Names under which configurations are held."""
WORK = {"traffic": {"sizes": "64KiB", "load": 0.3, "duration": "300us"}}
FABRIC = "ring:npus=4,rate=100Gbps,delay=500ns"


def reads(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in SECTIONS:
            holder = node.value
            name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
            if name in HOLDERS:
                return True
    return False


def test_few_modules_read_configurations():
    root = Path(package.__file__).parents[1]
    assert {str(path.relative_to(root)) for path in root.glob("nadi/**/*.py") if reads(path)} == READERS


def takers(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if any(each.annotation and "RunConfig" in ast.unparse(each.annotation) for each in given):
                yield f"{path.stem}.{node.name}"


def test_few_functions_take_configurations():
    root = Path(package.__file__).parent
    assert {name for path in root.glob("**/*.py") for name in takers(path)} == TAKERS


@pytest.mark.parametrize("fidelity", ["packet", "flow", "closed-form"])
def test_a_plan_is_immutable_and_runs_again(fidelity):
    config = load_config(
        None, sections={"workload": WORK, "topology": {"spec": FABRIC}, "network": {"fidelity": fidelity}}
    )
    plan = Resolver(config).plan()
    before = {field.name: getattr(plan, field.name) for field in nonempty(fields(RunPlan))}
    first, again = (execute(plan, NoProgress()).results.digest for _ in range(2))
    assert first == again
    assert all(getattr(plan, name) is value for name, value in before.items())
    with pytest.raises(FrozenInstanceError):
        plan.owner = None


def test_python_continues_a_run_that_was_stopped(tmp_path):
    sections = {"workload": WORK, "topology": FABRIC, "engine": {"checkpoint": "1h"}}
    whole = package.simulate(**sections, out=tmp_path / "whole")
    with often(), after(3), pytest.raises(parallel.StoppedError):
        package.simulate(**sections, out=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "checkpoints").glob("0*")] == ["000001"]
    resumed = package.simulate(**sections, resume=tmp_path / "out")
    assert resumed.folder == tmp_path / "out"
    assert resumed.digest == whole.digest
    assert not (tmp_path / "out" / "checkpoints").exists()
    with pytest.raises(package.ConfigError, match="found no checkpoint"):
        package.simulate(**sections, resume=tmp_path / "out")
