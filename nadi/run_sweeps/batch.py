"""A batch script for SLURM: an array of shards of a sweep."""

import shlex
import sys
from pathlib import Path


def array_script(file: Path, out: Path, shards: int, *, force: bool) -> str:
    """A script that runs the points in shards: `sbatch` it, then `nadi sweep` once more for the table.

    Args:
        file: the sweep file.
        out: folder for all results, on a file system that all nodes see.
        shards: tasks of the array.
        force: as --force of `nadi run`.
    """
    words = [sys.executable, "-m", "nadi", "sweep", str(file.absolute()), "--out", str(out.absolute())]
    command = shlex.join([*words, "--quiet", *(["--force"] if force else [])])
    log = shlex.quote(f"{out.absolute()}-%a.log")
    return "\n".join(
        (
            "#!/usr/bin/env bash",
            "# An array of shards of a sweep. Submit it again when something failed: what is finished is skipped.",
            f"# When all have ended, this makes the table and the page: {command}",
            f"#SBATCH --job-name=nadi-sweep --array=0-{shards - 1} --ntasks=1 --output={log}",
            f"{command} --shard $SLURM_ARRAY_TASK_ID/{shards}",
            "",
        )
    )
