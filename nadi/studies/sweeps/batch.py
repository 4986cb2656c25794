"""A batch script for SLURM: an array of shards of a sweep."""

from collections.abc import Sequence
from pathlib import Path

from nadi.launching.shards import array_script


def sweep_script(file: Path, out: Path, shards: int, options: Sequence[str], *, force: bool) -> str:
    """Return a script that runs the points in shards, and makes the table when all have ended.

    Args:
        file: The sweep file.
        out: Folder for all results, on a file system that all nodes see.
        shards: Number of tasks of the array.
        options: Further options of sbatch, as --sbatch takes them.
        force: As --force of `nadi run`.

    Raises:
        ConfigError: A name is not one line of printable characters, or an option is none of sbatch's.
    """
    sweep = ["sweep", str(file.absolute())]
    merging = [*sweep, "--merge"]
    return array_script([*sweep, *(["--force"] if force else [])], shards, out.absolute(), merging, options=options)
