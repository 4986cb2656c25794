"""Shards: equal, numbered parts of many runs, and a SLURM batch script that runs all of them."""

from collections.abc import Sequence
from pathlib import Path

from nadi.errors import ConfigError
from nadi.launching.script_words import directive, log_path, nadi_line, sbatch_options, shell_line, shell_word

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
    name and lack --shard and --out; all nodes see the folder. own_folders: each shard writes into one below, by number.
    """
    name, folder = f"nadi-{command[0]}", str(out_folder)
    extra = sbatch_options(more_options, OWN_OPTIONS)
    task = f"{shell_word(folder)}/$SLURM_ARRAY_TASK_ID" if own_folders else shell_word(folder)
    array = [
        f"job-name={name}",
        f"array=0-{num_shards - 1}",
        "ntasks=1",
        f"output={log_path(folder, '-%a.log')}",
        *extra,
    ]
    merge = nadi_line([*merge_command, "--out", folder, "--quiet"])
    after = [f"job-name={name}-merge", "ntasks=1", f"output={log_path(folder, '-merge.log')}", *extra, f"wrap={merge}"]
    lines = (
        "#!/usr/bin/env bash",
        f"# {num_shards} shards of `nadi {command[0]}`. Submit it with sbatch, and again when something failed.",
        *(directive(option) for option in array),
        "set -euo pipefail",
        "",
        "# The first task submits the job that merges the results when all tasks have ended.",
        'if [[ $SLURM_ARRAY_TASK_ID == 0 && -z "${SLURM_RESTART_COUNT:-}" ]]; then',
        '    sbatch --dependency=afterany:"$SLURM_ARRAY_JOB_ID" \\',
        f"        {shell_line(f'--{option}' for option in after)} ||",
        '        echo "sbatch cannot be used here: when all tasks have ended, run what --wrap holds above" >&2',
        "fi",
        f'{nadi_line(command)} --quiet --shard "$SLURM_ARRAY_TASK_ID/{num_shards}" --out {task}',
        "",
    )
    return "\n".join(lines)
