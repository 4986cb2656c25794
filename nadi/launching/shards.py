"""Shards: equal parts of many runs, told by their number, and a batch script for SLURM that runs all of them."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from nadi.errors import ConfigError

_MOST_SHARDS = 10**5


def shard_of(text: str) -> tuple[int, int]:
    """Number and count of "3/16".

    Raises:
        ConfigError: anything else.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and len(count) < 7 and int(number) < int(count) <= _MOST_SHARDS):
        raise ConfigError(f"--shard {text!r}: expected I/N with I from 0 below N, as 3/16")
    return int(number), int(count)


def command_line(words: Sequence[str]) -> str:
    """A command of nadi as a shell takes it, by this Python."""
    return shlex.join([sys.executable, "-m", "nadi", *words])


def array_script(
    words: Sequence[str], shards: int, out: Path, *, own_folders: bool = False, remarks: Sequence[str] = ()
) -> str:
    """A batch script of an array of shards of a command, for `sbatch`.

    Args:
        words: of the command, its name first, without --shard and --out.
        shards: tasks of the array.
        out: folder for all results, on a file system that all nodes see.
        own_folders: each shard has a folder below it, by its number.
        remarks: lines for who reads the script.
    """
    folder = shlex.quote(str(out))
    where = f"{folder}/$SLURM_ARRAY_TASK_ID" if own_folders else folder
    return "\n".join(
        (
            "#!/usr/bin/env bash",
            *(f"# {line}" for line in remarks),
            f"#SBATCH --job-name=nadi-{words[0]} --array=0-{shards - 1} --ntasks=1 --output={folder}-%a.log",
            f"{command_line(words)} --quiet --shard $SLURM_ARRAY_TASK_ID/{shards} --out {where}",
            "",
        )
    )
