"""The front door itself: help, lazy imports, errors as one line and an exit code."""

import json
import re
import subprocess
import sys

import pytest
from typer.main import get_command

from nadi import __version__, partition, topologies
from nadi.cli import options
from nadi.cli.commands import build_app, command_line
from nadi.pdes.fidelity import FLUID
from nadi.studies.benchmarks.bench import BENCHES
from nadi.topologies.clusters import clusters
from nadi.workload import KINDS
from nadi.workload.collectives import known_algorithms, uneven_algorithms
from nadi.workload.collectives.uneven import NAME as UNEVEN
from nadi.workload.generators import models
from tests.nonempty import nonempty

COMMANDS = get_command(build_app()).commands


def commands_of(group, words=""):
    for name, command in group.items():
        yield f"{words} {name}"
        yield from commands_of(getattr(command, "commands", {}), f"{words} {name}")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_help_names_every_command(nadi, arguments):
    outcome = nadi.ok(*arguments)
    for command in nonempty(COMMANDS):
        assert f"  {command} " in outcome.out


@pytest.mark.parametrize("command", [*commands_of(COMMANDS)])
def test_every_command_has_help(nadi, command):
    assert nadi.ok(*command.split(), "--help").out.startswith(f"Usage: nadi{command}")


def test_version(nadi):
    code, text, complaints = nadi("--version")
    assert (code, complaints) == (0, "")
    assert re.fullmatch(rf"nadi {re.escape(__version__)} \(commit ([0-9a-f]{{12}}|unknown)\)\n", text)


def test_help_starts_neither_numba_nor_mpi():
    """Nor anything else that is slow to import."""
    code = (
        "import sys, json; from nadi.cli.main import main; code = main(['--help']); "
        "heavy = ['numba', 'mpi4py', 'numpy', 'pyarrow', 'pydantic', 'google.protobuf']; "
        "heavy += ['nadi.pdes', 'nadi.et', 'nadi.workload']; "
        "print(json.dumps([code, [name for name in heavy if name in sys.modules]]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stderr) == [0, []]


def test_is_a_module_too():
    done = subprocess.run([sys.executable, "-m", "nadi", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"nadi {__version__} (commit ")


def _raising(monkeypatch, error):
    def doctor():
        raise error

    monkeypatch.setattr("nadi.cli.commands.bench.doctor", doctor)
    monkeypatch.setattr("nadi.cli.commands.command_line", command_line.__wrapped__)


def test_defects_are_one_line_with_their_place(nadi, monkeypatch):
    _raising(monkeypatch, KeyError("gone"))
    outcome = nadi("doctor")
    assert outcome.code == 1
    assert "KeyError: 'gone' (test_cli.py:" in outcome.err
    assert "Traceback" not in outcome.err
    monkeypatch.setenv("NADI_DEBUG", "1")
    assert "Traceback" in nadi("doctor").err


def test_long_texts_of_defects_are_shortened(nadi, monkeypatch):
    """Errors of Numba's compiler have pages."""
    _raising(monkeypatch, RuntimeError("Failed in nopython mode\n" + "no implementation found\n" * 400))
    outcome = nadi("doctor")
    assert "RuntimeError: Failed in nopython mode no implementation" in outcome.err
    assert "implementation ... (test_cli.py:" in outcome.err
    assert len(outcome.err) < 600


@pytest.mark.parametrize(("code", "text"), [(2, "a\n  b"), (1, "stalled:\n  npu 0 waits")])
def test_errors_say_their_own_code(nadi, monkeypatch, code, text):
    _raising(monkeypatch, type("Wrong", (ValueError,), {"exit_code": code})(text))
    expected = text if code == 1 else "a b"
    assert nadi("doctor") == (code, "", f"nadi: error: {expected}\n")


def test_interrupt(nadi, monkeypatch):
    _raising(monkeypatch, KeyboardInterrupt())
    assert nadi("doctor") == (130, "", "nadi: error: interrupted\n")


def test_closed_pipe_is_quiet():
    command = f"{sys.executable} -m nadi topology list --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


COMPLETED = {
    "nadi coll": {"collective"},
    "nadi topology show r": {"ring", "rail-fat-tree", "rail-only", "rail-optimised"},
    "nadi collective all-r": {"all-reduce"},
    "nadi collective all-reduce -t torus:sizes=4x4 --algorithm r": {"ring", "recursive-doubling", "rotated-ring"},
    "nadi collective barrier -t ring:npus=4 --algorithm dissemination,r": {"dissemination,recursive-doubling"},
    "nadi collective all-to-all-v --algorithm h": {"hierarchical"},
    "nadi partition run.toml --method bl": {"blocks"},
    "nadi bench roc": {"roce"},
    "nadi run --cluster sm": {"small-a100"},
    "nadi plan --model gpt3-13": {"gpt3-13b"},
    "nadi workload megatron --model gpt3-13": {"gpt3-13b"},
    "nadi topology show ri": {"ring"},
}


@pytest.mark.parametrize("line", COMPLETED)
def test_the_shell_is_offered_names(nadi, monkeypatch, line):
    """As bash asks: the words so far in the environment, the answer on standard output."""
    monkeypatch.setenv("_NADI_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    outcome = nadi(*line.split()[1:])
    assert (outcome.code, set(outcome.out.split()), outcome.err) == (0, COMPLETED[line], "")


def test_completion_knows_the_names_of_the_registries(monkeypatch):
    monkeypatch.delenv("COMP_WORDS", raising=False)
    assert set(options.topology_names("")) == {*topologies.topologies(), *clusters()}
    assert options.cluster_names("") == list(clusters())
    assert set(options.model_names("")) == set(models.names())
    assert options.kinds("") == [*KINDS, UNEVEN]
    assert set(options.algorithms("")) == {"all", *known_algorithms()}
    for kind in nonempty(KINDS):
        monkeypatch.setenv("COMP_WORDS", f"nadi collective {kind} -a ")
        known = {name for name, module in known_algorithms().items() if kind in module.KINDS}
        assert set(options.algorithms("")) - {"custom"} == {"all", *known} - {"custom"}
    monkeypatch.setenv("COMP_WORDS", f"nadi collective {UNEVEN} -a ")
    assert options.algorithms("") == ["all", *uneven_algorithms()]
    assert set(options.methods("")) == set(partition.methods())
    assert set(options.benches("")) == {*BENCHES, FLUID, "coupled", "reuse", "trace"}


def test_completion_starts_no_heavy_package():
    """It takes 0.25 s of CPU time where NumPy alone takes 0.1 s, and the packages of the project up to 1 s."""
    code = "import nadi.cli.commands, nadi.cli.options as c; nadi.cli.commands.command_line()\n"
    code += "c.topology_names(''), c.model_names(''), c.algorithms(''), c.methods(''), c.benches('')\n"
    code += "import sys; print(*({'numpy', 'pydantic', 'nadi.topologies', 'nadi.pdes'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_completion_can_be_installed(nadi, monkeypatch):
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    assert "complete -o default -F _nadi_completion nadi" in nadi.ok("--show-completion").out
    assert "--install-completion" in nadi("--help").out
