"""Ctrl-C at any moment: while Nadi is imported, compiles, and is read in, not only while it runs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nadi.launching.ending import Interrupts

ROOT = Path(__file__).parents[2]
LINE = "nadi: error: interrupted\n"
WHERE = """
import os, signal, sys
from importlib.abc import MetaPathFinder
class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["nadi", *{arguments!r}]
from nadi.__main__ import entry_point
entry_point()
"""
LOST = """
import ctypes, os, signal, sys, time
from nadi.cli import main as cli
def lose():
    def callback():
        os.kill(os.getpid(), signal.SIGINT)
    ctypes.CFUNCTYPE(None)(callback)()
    from nadi.launching.progress import Silence
    Silence()(None)
    print("not ended")
cli._run = lambda arguments: lose()
cli.entry_point()
"""

HALF_MADE = """
import os, signal, time
from nadi.cli import main as cli
class Half:
    def __del__(self):
        del self.nothing
def stopped():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    except KeyboardInterrupt:
        Half()
        raise
cli._run = lambda arguments: stopped()
cli.entry_point()
"""


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["nadi.cli.main", "typer", "numpy", "nadi.simulation.run"])
def test_while_modules_are_imported(name, tmp_path):
    run = tmp_path / "run.toml"
    run.write_text('[workload]\ntraces = "none"\n[topology]\nspec = "ring:npus=2"\n')
    done = python(WHERE.format(name=name, arguments=["run", str(run)]))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


def test_while_numba_is_imported(tmp_path):
    arguments = ["collective", "all-reduce", "-t", "ring:npus=2", "--sizes", "1KiB", "-q"]
    nothing_compiled = {"NADI_CACHE_DIR": str(tmp_path)}
    done = python(WHERE.format(name="numba.core.codegen", arguments=arguments), **nothing_compiled)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


def test_one_that_python_loses_comes_again_where_the_run_shows_progress():
    """Python loses it in a callback from C, as LLVM's while kernels are compiled."""
    done = python(LOST)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


def test_one_that_python_loses_is_not_forgotten_at_the_end():
    done = python(LOST.replace("    Silence()(None)\n", "    return 0\n"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


def test_what_it_has_left_half_made_is_cleaned_up_without_a_word():
    """As an object of LLVM's whose making it has stopped: its finalizer finds nothing to give back, and fails."""
    done = python(HALF_MADE)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


def test_one_that_others_ignore_is_ignored():
    """As nohup and jobs of the background have it."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    done = python(code + WHERE.format(name="typer", arguments=["--version"]))
    assert done.returncode == 0
    assert done.stdout.startswith("nadi ")


def test_ranks_that_know_nothing_of_each_other_leave_it_to_the_first_to_speak():
    for name in ("typer", "nadi.cli.main"):
        code = WHERE.format(name=name, arguments=["--version"])
        for rank, said in (("0", LINE), ("1", "")):
            done = python(code, PMI_RANK=rank, PMI_SIZE="2")
            assert (done.returncode, done.stderr) == (130, said)


def test_a_second_one_ends_at_once(monkeypatch):
    ended = []
    monkeypatch.setattr(Interrupts, "pending", None)
    monkeypatch.setattr("nadi.launching.ending.os._exit", ended.append)
    with pytest.raises(KeyboardInterrupt):
        Interrupts._interrupt(2, None)
    Interrupts._interrupt(2, None)
    assert ended == [], "the same press, told by terminal and launcher"
    monkeypatch.setattr("nadi.launching.ending._SAME_PRESS_S", -1.0)
    Interrupts._interrupt(2, None)
    assert ended == [130]


@pytest.mark.slow
def test_while_kernels_compile(tmp_path):
    """The kernels of a run take many seconds: a press after some of them ends it within three."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NADI_CACHE_DIR": str(tmp_path / "cache")}
    # As the script `nadi` does it: under `-m`, CPython 3.11 ends with SIGINT itself, not with code 130, if the press
    # came while a string was executed (Py_RunMain looks at unhandled_keyboard_interrupt)
    arguments = ["nadi", "collective", "all-reduce", "-t", "ring:npus=4", "-o", str(tmp_path / "o")]
    code = f"import sys; sys.argv = {arguments!r}; from nadi.__main__ import entry_point; entry_point()"
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline().startswith("nadi: compiling the kernels")
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, LINE)
    assert time.monotonic() < begun + 5
    assert [path.name for path in Path(tmp_path).iterdir()] == ["cache"]
