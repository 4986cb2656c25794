"""Batch scripts for SLURM: a job of one run, an array of runs with different values, or shards of many runs.

Every user-given name in a script passes through the quoting functions of this module. A name may contain a line feed,
which would end a comment or a directive and begin a command, or characters that a shell or SLURM interprets. Each of
these functions raises ConfigError for a name that is not one line of printable characters, such as one with a control
character or a byte that is not UTF-8, and quotes all others.
"""

import hashlib
import itertools
import re
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from nadi.errors import ConfigError
from nadi.inputs.errors import NadiError
from nadi.launching.installation import nadi_command

# Options of srun, which takes the CPUs of a task from its own option only
_SRUN_OPTIONS = '--ntasks="$ranks" --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1'
# Command prefix per name of --launcher
LAUNCHERS = {"mpiexec": 'mpiexec -n "$ranks"'}
LAUNCHERS |= {f"srun-{pmi}": f"srun --mpi={pmi} {_SRUN_OPTIONS}" for pmi in ("pmi2", "pmix")}
_TIME = re.compile(r"(?:\d+-)?\d+:[0-5]\d:[0-5]\d")
_MEMORY = re.compile(r"0|[1-9]\d{0,9}[KMGT]?")
# Units of SLURM's --mem; a number without one counts MiB
_MEMORY_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "": 1 << 20}
# Options of sbatch that the script or options of `nadi slurm` set
_OF_TASKS = ("job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "mem", "partition", "account", "array")
OWN_OPTIONS = (*_OF_TASKS, "requeue", "open-mode", "signal")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+@:-]*")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+@:/-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.=:,+-]")
_MAX_FOLDER_LENGTH = 100
_SBATCH_TIMEOUT_S = 60
# Maximum seconds before the time limit for a last checkpoint, and the share of short limits that is left for it; SLURM
# may send the signal up to a minute earlier
_SAVE_S, _SAVE_SHARE = 180, 12
_ANSWER_S = 20  # seconds in which a node must start a step after a run has failed


class SubmitError(NadiError, RuntimeError):
    """sbatch rejected the script. The message has one line with sbatch's own text."""


class Task(NamedTuple):
    """Task of a job array: its folder inside the results' folder, and its values as for --set."""

    folder: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """Contents of a script: a run, or an array of tasks. Values that SLURM would misunderstand raise ConfigError."""

    run_file: PurePath
    out: PurePath
    python: PurePath
    name: str
    nodes: int = 1
    ranks_per_node: int = 1
    threads: int = 1
    time: str = ""
    memory: str = ""
    partition: str = ""
    account: str = ""
    launcher: str = "mpiexec"
    overrides: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()
    sbatch: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()  # environment modules that the script loads, in this order
    saves: bool = False  # the run writes checkpoints
    force: bool = False

    def __post_init__(self) -> None:
        for option in ("nodes", "ranks_per_node", "threads"):
            if getattr(self, option) < 1:
                raise ConfigError(f"--{option.replace('_', '-')} {getattr(self, option)}: expected 1 or more")
        if self.time and not _TIME.fullmatch(self.time):
            raise ConfigError(f"--time {self.time!r}: expected HH:MM:SS or D-HH:MM:SS")
        if self.memory and not _MEMORY.fullmatch(self.memory):
            raise ConfigError(f"--mem {self.memory!r}: expected a number with K, M, G or T, as 64G, or 0 for all")
        sbatch_options(self.sbatch, OWN_OPTIONS)
        _check_modules(self.modules)
        for option, value in (("job-name", self.name), ("partition", self.partition), ("account", self.account)):
            if value and not _WORD.fullmatch(value):
                raise ConfigError(f"--{option} {value!r}: expected letters, digits and _.,+@:- only")
        if self.launcher not in LAUNCHERS:
            raise ConfigError(f"--launcher {self.launcher!r}: expected one of {', '.join(LAUNCHERS)}")
        paths = (str(path) for path in (self.run_file, self.out, self.python))
        for text in itertools.chain(paths, self.overrides, *(task.overrides for task in self.tasks)):
            one_line(text)

    @property
    def save_s(self) -> int:
        """Return the seconds before the time limit at which SLURM requests a checkpoint."""
        return min(_SAVE_S, _seconds(self.time) // _SAVE_SHARE)

    @property
    def ranks(self) -> int:
        """Return the number of MPI processes."""
        return self.nodes * self.ranks_per_node


def _check_modules(modules: Sequence[str]) -> None:
    """Raise ConfigError if a text is no name of an environment module."""
    for module in modules:
        if not _MODULE.fullmatch(module):
            raise ConfigError(f"--module {module!r}: expected a name of `module avail`, such as openmpi/4.1.5")


def _seconds(time: str) -> int:
    """Return the seconds of a time limit, such as "1-02:03:04"."""
    days, _, clock = time.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def memory_bytes(text: str) -> int | None:
    """Return the bytes of a value of --mem; None if it sets no limit ("" or 0).

    Args:
        text: The value of --mem, a number with a unit.
    """
    if not _MEMORY.fullmatch(text) or text == "0":
        return None
    number = text.rstrip("KMGT")
    return int(number) * _MEMORY_UNITS[text[len(number) :]]


def job_name(run_file: Path) -> str:
    """Return a name that SLURM accepts, from the name of the run file.

    Args:
        run_file: The path of the run file.
    """
    return _UNSAFE.sub("_", run_file.stem).lstrip(".=:,+-") or "nadi"


def sweep_tasks(sweeps: Sequence[str]) -> tuple[Task, ...]:
    """Return tasks for all combinations of "section.key=v1,v2,..." or "...=v1;v2"; ConfigError if one is ambiguous.

    Args:
        sweeps: The values of --sweep, a key with its values each.
    """
    values_of_key: dict[str, list[str]] = {}
    for sweep in sweeps:
        key, equals, text = (part.strip() for part in sweep.partition("="))
        values = [value.strip() for value in text.split(";" if ";" in text else ",")]
        if not equals or not key or not all(values):
            raise ConfigError(f"--sweep {sweep!r}: expected section.key=value,value,...")
        if key in values_of_key:
            raise ConfigError(f"--sweep {sweep!r}: {key} is swept twice; expected all its values in one --sweep")
        if len(set(values)) < len(values):
            raise ConfigError(f"--sweep {sweep!r}: a value is listed twice")
        values_of_key[key] = [f"{key}={value}" for value in values]
    combinations = itertools.product(*values_of_key.values()) if sweeps else ()
    return tuple(Task(_folder(",".join(chosen)), chosen) for chosen in combinations)


def render(job: Job) -> str:
    """Return the batch script of a job."""
    named = [f"--{name}={value}" for name, value in (("partition", job.partition), ("account", job.account)) if value]
    follower = "".join(f" {shell_word(word)}" for word in (*named, *(f"--{option}" for option in job.sbatch)))
    launch = LAUNCHERS[job.launcher]
    return rendered("job.sh.j2", job=job, launch=launch, follower=follower, answer_s=_ANSWER_S)


def submit(script_path: Path) -> str:
    """Submit a script and return sbatch's output; raise ConfigError without sbatch, SubmitError if it fails.

    Args:
        script_path: The file of the script.
    """
    try:
        command = ["sbatch", str(script_path)]  # a script that Nadi has written, and the cluster's sbatch
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SBATCH_TIMEOUT_S, check=False)  # noqa: S603
    except FileNotFoundError:
        raise ConfigError(f"--submit: no sbatch on PATH; {script_path} is written, submit it where SLURM is") from None
    except subprocess.TimeoutExpired:
        raise SubmitError(f"sbatch {script_path}: no answer in {_SBATCH_TIMEOUT_S} s") from None
    if done.returncode:
        raise SubmitError(f"sbatch {script_path}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def _folder(settings: str) -> str:
    """Return a folder name for these settings: the settings if they are a valid and short name, else a hash follows."""
    name = _UNSAFE.sub("_", settings)[:_MAX_FOLDER_LENGTH]
    return name if name == settings else f"{name}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"


_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.,:=+@/%-]*")
_OPTION = re.compile(r"([a-z][a-z0-9-]*)(?:=.+)?")


def one_line(text: str) -> str:
    """Return the text if it is one line of printable characters."""
    if not text.isprintable():
        raise ConfigError(f"{text!r}: expected a single line of printable characters, as it goes into a batch script")
    return text


def shell_word(text: str) -> str:
    """Return the text quoted as one word of a shell."""
    return shlex.quote(one_line(text))


def shell_line(words: Iterable[str]) -> str:
    """Return a command line of these words, each quoted."""
    return " ".join(shell_word(word) for word in words)


def nadi_line(words: Sequence[str]) -> str:
    """Return the command line that runs `nadi` with these arguments by the Python that runs now.

    Args:
        words: The arguments of `nadi`, without quotes.
    """
    return shell_line(nadi_command(words))


def directive(option: str) -> str:
    """Return the #SBATCH line of an option "qos=high" or "exclusive", with its value quoted as sbatch reads quotes."""
    name, equals, value = one_line(option).partition("=")
    if not _PLAIN_VALUE.fullmatch(value):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        value = f'"{escaped}"'
    return f"#SBATCH --{name}{equals}{value}"


def rendered(template: str, **values: Any) -> str:  # noqa: ANN401 - whatever the template shows
    """Return the batch script of a template, whose filters quote what is put in.

    Args:
        template: The name of the template, a file of templates/slurm.
        values: Values of the template by name.
    """
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 - it makes a shell script, quoted for the shell, and no HTML
        loader=jinja2.PackageLoader("nadi.launching", "templates/slurm"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "quote": shell_word,
        "shell_line": shell_line,
        "directive": directive,
        "nadi_line": nadi_line,
    }
    environment.filters["settings"] = lambda overrides: shell_line(
        word for override in overrides for word in ("--set", override)
    )
    return environment.get_template(template).render(**values)


def log_path(folder: str, pattern: str) -> str:
    """Return a value of --output: a path that is taken literally, and behind it a pattern of SLURM such as "-%a.log".

    A path with a backslash raises ConfigError, because SLURM replaces no pattern after one.

    Args:
        folder: The path that is taken literally.
        pattern: The end of the path, with patterns of SLURM.
    """
    if "\\" in folder:
        raise ConfigError(f"{folder!r}: found a backslash; expected a path without one, for the --output of SLURM")
    return folder.replace("%", "%%") + pattern


def sbatch_options(options: Sequence[str], own: Iterable[str]) -> tuple[str, ...]:
    """Return checked values of --sbatch, as "qos=high" or "exclusive"; ConfigError for options that the script sets.

    Args:
        options: The values of --sbatch as users wrote them.
        own: Options that the script sets itself.
    """
    for option in options:
        parts = _OPTION.fullmatch(one_line(option))
        if parts is None:
            raise ConfigError(f"--sbatch {option!r}: expected an option of sbatch without its dashes, as qos=high")
        if parts[1] in own:
            raise ConfigError(f"--sbatch {option!r}: the script sets --{parts[1]} itself; expected another option")
    return tuple(options)


_MAX_SHARDS = 10**5
# Options of sbatch that scripts of arrays set themselves
_ARRAY_OPTIONS = ("job-name", "array", "ntasks", "output", "dependency", "wrap")


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
    extra = sbatch_options(more_options, _ARRAY_OPTIONS)
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
