"""Shards: equal, numbered parts of many runs, and a SLURM batch script that runs all of them."""

from collections.abc import Sequence
from pathlib import Path

from nadi.errors import ConfigError
from nadi.launching.script_words import log_path, nadi_line, rendered, sbatch_options

_MAX_SHARDS = 10**5
# Options of sbatch that scripts of arrays set themselves
OWN_OPTIONS = ("job-name", "array", "ntasks", "output", "dependency", "wrap")


def shard_of(text: str) -> tuple[int, int]:
    """Return number and count from the text of a shard, "3/16"; another form raises ConfigError."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and len(count) < 7 and int(number) < int(count) <= _MAX_SHARDS):
        raise ConfigError(f"--shard {text!r}: expected I/N with I from 0 below N, as 3/16")
    return int(number), int(count)


def array_script(
    command: Sequence[str],
    num_shards: int,
    out_folder: Path,
    merge_command: Sequence[str],
    *,
    own_folders: bool = False,
    more_options: Sequence[str] = (),
) -> str:
    """Return a batch script of an array of shards of a command, for `sbatch`.

    The first task submits one more job, which merges the results when all tasks have ended. Commands begin with their
    name and lack --shard and --out; all nodes see the folder.

    Args:
        command: The name of the command and its arguments, without --shard and --out.
        num_shards: The number of tasks of the array.
        out_folder: The folder of the results, which all nodes see.
        merge_command: The name and arguments of the command that merges the results of all shards.
        own_folders: Whether each shard writes into a folder of its own below `out_folder`, named by its number.
        more_options: Further options of sbatch, without dashes.
    """
    name, folder = f"nadi-{command[0]}", str(out_folder)
    extra = sbatch_options(more_options, OWN_OPTIONS)
    last = num_shards - 1
    merge = nadi_line([*merge_command, "--out", folder, "--quiet"])
    after = [f"job-name={name}-merge", "ntasks=1", f"output={log_path(folder, '-merge.log')}", *extra, f"wrap={merge}"]
    return rendered(
        "array.sh.j2",
        command=command,
        shards=num_shards,
        folder=folder,
        own_folders=own_folders,
        options=[f"job-name={name}", f"array=0-{last}", "ntasks=1", f"output={log_path(folder, '-%a.log')}", *extra],
        after=[f"--{option}" for option in after],
    )
