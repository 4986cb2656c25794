"""A batch script for SLURM: an array of shards of a sweep."""

from pathlib import Path

from nadi.launching.shards import array_script, command_line


def sweep_script(file: Path, out: Path, shards: int, *, force: bool) -> str:
    """A script that runs the points in shards: `sbatch` it, then `nadi sweep` once more for the table.

    Args:
        file: the sweep file.
        out: folder for all results, on a file system that all nodes see.
        shards: tasks of the array.
        force: as --force of `nadi run`.
    """
    words = ["sweep", str(file.absolute()), *(["--force"] if force else [])]
    table = command_line([*words, "--out", str(out.absolute()), "--quiet"])
    remarks = (
        "An array of shards of a sweep. Submit it again when something failed: what is finished is skipped.",
        f"When all have ended, this makes the table and the page: {table}",
    )
    return array_script(words, shards, out.absolute(), remarks=remarks)
