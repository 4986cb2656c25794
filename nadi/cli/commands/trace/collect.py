"""`nadi trace collect`: record host execution traces and Kineto traces of a training script."""

import os
import re
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from nadi import inputs
from nadi.cli.options import TracesOut
from nadi.errors import ConfigError
from nadi.inputs.errors import NadiError
from nadi.terminal import say

_COMMAND = "Training command, such as torchrun or python train.py."
_STEPS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_FILE = re.compile(r"kineto\.rank[0-9]+\.json")


def register(group: typer.Typer) -> None:
    """Add the command.

    Args:
        group: The group that gets the command.
    """
    group.command(context_settings={"ignore_unknown_options": True})(collect)


def collect(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help=_COMMAND)],
    out: TracesOut,
    steps: str = typer.Option("3", metavar="N|N-M", help="Steps to record, from 2; each ends with an optimizer."),
) -> None:
    """Run a training script and record some of its steps on every rank with PyTorch's profiler."""
    from nadi.et.pytorch.injected import nadi_collecting

    match = _STEPS.fullmatch(steps)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 2 <= first <= last < first + 1000:
        raise ConfigError(f"--steps {steps}: expected a step from 2 on, or a few of them as 3-5")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: is no folder, expected a folder for traces")
    before = _recordings(out)
    if before:
        raise ConfigError(f"{out}: holds traces of {len(before)} ranks, expected a folder without")
    folder = str(Path(nadi_collecting.__file__).parent)
    path = os.pathsep.join(part for part in (folder, os.environ.get("PYTHONPATH", "")) if part)
    variables = {
        nadi_collecting.FOLDER: str(out.absolute()),
        nadi_collecting.STEPS: ",".join(map(str, range(first, last + 1))),
        "PYTHONPATH": path,
    }
    with inputs.refusing(command[0], "a program that trains", ConfigError):
        code = subprocess.run(command, env=os.environ | variables, check=False).returncode  # noqa: S603 - the user's own
    if code:
        raise CollectError(f"{command[0]} has ended with code {code}")
    ranks = len(_recordings(out))
    if not ranks:
        raise CollectError(f"no step was recorded: {command[0]} ended before step {last} of a PyTorch optimizer did")
    say(f"{ranks} ranks; nadi trace convert {out} -o DIR makes Chakra traces of them")


def _recordings(folder: Path) -> list[str]:
    """Return the names of the Kineto traces in a folder, one per rank."""
    return [file.name for file in folder.iterdir() if _FILE.fullmatch(file.name)] if folder.is_dir() else []


class CollectError(NadiError, RuntimeError):
    """The script failed, or did not reach the steps to record."""
