"""A SLURM batch script that runs a sweep as an array of shards."""

from collections.abc import Sequence
from pathlib import Path

from nadi.launching.shards import array_script


def sweep_script(file: Path, out: Path, shards: int, options: Sequence[str], *, force: bool) -> str:
    """Return a script that runs the points in shards, then merges the results into the table.

    Args:
        file: Path of the sweep file.
        out: Folder for all results, on a file system that all nodes share.
        shards: Number of array tasks.
        options: Further sbatch options, as --sbatch takes them.
        force: Whether to pass --force to `nadi run`.

    Raises:
        ConfigError: A name is not one line of printable characters, or an option is unknown to sbatch.
    """
    sweep = ["sweep", str(file.absolute())]
    merge = [*sweep, "--merge"]
    return array_script([*sweep, *(["--force"] if force else [])], shards, out.absolute(), merge, options=options)
