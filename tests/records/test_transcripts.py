"""Commands print what their transcripts hold, and end with the same exit code."""

import difflib
import math
import os

import pytest
import typer

from nadi.cli.commands import build_app
from nadi.launching import progress
from tests.nonempty import nonempty
from tests.records import transcripts

NAMES = sorted(path.stem for path in transcripts.FOLDER.glob("*.txt"))
SLOW = {"calibrations"}


@pytest.mark.usefixtures("points_here")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NAMES])
def test_commands_print_what_was_recorded(name, nadi, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "LINE_EVERY_S", math.inf)  # no line depends on how long a command takes
    path = transcripts.FOLDER / f"{name}.txt"
    recorded = path.read_text()
    found = transcripts.written([transcripts.run(step, nadi, tmp_path) for step in transcripts.read(path)])
    if os.environ.get("NADI_RECORD"):
        path.write_text(found)
        return
    lines = [*difflib.unified_diff(recorded.splitlines(), found.splitlines(), "recorded", "found", lineterm="")]
    assert not lines, "\n".join(lines)


def test_transcripts_are_written_as_they_are_read():
    for name in nonempty(NAMES):
        path = transcripts.FOLDER / f"{name}.txt"
        assert transcripts.written(transcripts.read(path)) == path.read_text()


def test_commands_of_all_kinds_are_recorded():
    commands = [step.command.split() for name in NAMES for step in transcripts.read(transcripts.FOLDER / f"{name}.txt")]
    recorded = {words[1] for words in commands if words[0] == "nadi"}
    unrecorded = {"bench", "doctor"}  # they measure this machine
    assert set(typer.main.get_command(build_app()).commands) - unrecorded <= recorded


def test_only_what_this_machine_took_is_masked(tmp_path):
    text = f"""2.5 ms simulated in 0.3 s, 1.2 min since the command began
7 packet-hops, 3.2 M/s
  "finish_time_ps": 25, "wall_s": 0.25,
  "step_s": 0.0123456789012345,
nadi: compiling the kernels, once, into {tmp_path} (it took 12 s here before)
nadi: error: {tmp_path}/run.toml: wrong
"""
    assert transcripts.masked(text, tmp_path) == (
        "2.5 ms simulated in TIME, TIME since the command began",
        "7 packet-hops, RATE",
        '  "finish_time_ps": 25, "wall_s": TIME,',
        '  "step_s": 0.0123456789,',
        "nadi: error: FOLDER/run.toml: wrong",
    )
