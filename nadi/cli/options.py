"""Options that several commands share, their parsers, and shell completion.

The shell starts `nadi` at each completion. To answer in a fraction of a second, these functions read the names in the
files of the other packages, as text, and import none of them.
"""

import ast
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.configuration import MAX_WORKERS
from nadi.errors import ConfigError
from nadi.inputs import plug_ins

if TYPE_CHECKING:
    from nadi.launching.ranks import RankGather
    from nadi.launching.workers import Backend

_BENCHES = ("permutation", "allreduce", "hierarchical", "roce", "pairs", "flow", "coupled", "reuse", "trace")


def topology_names(incomplete: str) -> list[str]:
    """Return the topologies, machines and clusters that begin with the incomplete word."""
    names = {name for kind in ("topology", "machine", "cluster") for name in plug_ins.names(kind)}
    return _beginning(incomplete, sorted(names))


def cluster_names(incomplete: str) -> list[str]:
    """Return the clusters that begin with the incomplete word."""
    return _beginning(incomplete, plug_ins.names("cluster"))


def model_names(incomplete: str) -> list[str]:
    """Return the models of the library that begin with the incomplete word."""
    return _beginning(incomplete, plug_ins.names("model"))


def kinds(incomplete: str) -> list[str]:
    """Return the kinds of collectives that begin with the incomplete word."""
    workload = plug_ins.ROOT / "nadi" / "workload"
    uneven = _constants(workload / "collectives" / "uneven.py")["NAME"]
    return _beginning(incomplete, (*_constants(workload / "kinds.py")["KINDS"], uneven))


def algorithms(incomplete: str) -> list[str]:
    """Return matching algorithms, of the kind on the command line or of all kinds; a list has commas: "ring,direct".

    Args:
        incomplete: The beginning of the word.
    """
    # the shell's variables, because the parser fails if an option lacks a value
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()
    *even, uneven = known_kinds = kinds("")
    kind = next((word for word in words if word in known_kinds), None)
    before, comma, last = incomplete.rpartition(",")
    modules = {name: _constants(path) for name, path in plug_ins.own_files("collective algorithm").items()}
    if kind == uneven:
        plain = _constants(plug_ins.ROOT / "nadi" / "workload" / "collectives" / "uneven.py")["ALGORITHMS"]
        names = [*plain, *(name for name, constants in modules.items() if "plan_uneven" in constants)]
    else:  # kinds that are computed are those of an algorithm from a file, for any kind
        names = [name for name, module in modules.items() if kind is None or kind in module.get("KINDS", even)]
    names += plug_ins.installed_names("collective algorithm")
    return [f"{before}{comma}{name}" for name in _beginning(last, names if before else ("all", *names))]


def methods(incomplete: str) -> list[str]:
    """Return the partition methods that begin with the incomplete word."""
    return _beginning(incomplete, plug_ins.names("partition method"))


def benches(incomplete: str) -> list[str]:
    """Return the benchmarks that begin with the incomplete word."""
    return _beginning(incomplete, _BENCHES)


def _constants(path: Path) -> dict[str, Any]:
    """Return the literal values that a module assigns, by name, and None for each of its functions."""
    found: dict[str, Any] = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.FunctionDef):
            found[statement.name] = None
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            with suppress(ValueError):
                found[statement.targets[0].id] = ast.literal_eval(statement.value)
    return found


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def named_path(text: str) -> Path:
    """Return a path; an empty text is an error instead of the current folder."""
    if not text.strip():
        raise typer.BadParameter("found an empty path; expected a name, or . for this folder")
    return Path(text)


_SPEC = "Name and parameters: ring:npus=8,rate=400Gbps; a cluster: selene:gpus=64; or a file."
_OVERRIDES = "Replace a value of the run file, such as network.window=1MiB. Repeatable."
_SBATCH = "Additional sbatch option without dashes, such as qos=high or exclusive. Repeatable."
_WORKERS = "Number of threads or processes on this machine; under mpiexec, threads per rank."
_SHARDS = "Only print a batch script of a job array of N shards."
_TRACES = "Traces PREFIX.<npu>.et[.gz], a folder, a trace set."
_TIMELINE = "FILE.perfetto-trace, which ui.perfetto.dev opens."
_SLICES = "Maximum number of nodes that have slices of their own."
_FIGURES = "Folder for the charts as SVG, PDF and CSV."
_PATTERN = "Names of nodes, such as 'step0/forward/*'. Repeatable."

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Force = Annotated[bool, typer.Option("--force", help="Run even if the estimate exceeds the free memory or a day.")]
Overrides = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help=_OVERRIDES)]
Sbatch = Annotated[list[str], typer.Option("--sbatch", metavar="OPTION", help=_SBATCH)]
ArraySize = Annotated[int, typer.Option("--slurm", min=0, max=10_000, metavar="N", help=_SHARDS)]
WorkerCount = Annotated[int, typer.Option("--workers", min=1, max=MAX_WORKERS, metavar="N", help=_WORKERS)]
BackendName = Annotated[str, typer.Option("--backend", metavar="NAME", help="Kind of workers: threads or processes.")]
Spec = Annotated[str, typer.Argument(metavar="SPEC", help=_SPEC, autocompletion=topology_names)]
Topology = Annotated[str, typer.Option("--topology", "-t", metavar="SPEC", help=_SPEC, autocompletion=topology_names)]
FiguresFolder = Annotated[
    Path | None, typer.Option("--figures", metavar="DIR", parser=named_path, help=_FIGURES, show_default=False)
]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Results of `nadi run --out DIR`.")]
Traces = Annotated[Path, typer.Argument(metavar="PREFIX|DIR|FILE", help=_TRACES)]
TracesOut = Annotated[
    Path, typer.Option("-o", "--out", metavar="DIR", parser=named_path, help="Folder for the traces.")
]
Timeline = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", parser=named_path, help=_TIMELINE)]
MaxSlices = Annotated[int, typer.Option("--most-slices", min=1, metavar="N", help=_SLICES)]
Prefix = Annotated[str, typer.Option("--prefix", metavar="NAME", help="Prefix of the file names.")]
NodeIds = Annotated[str, typer.Option("--nodes", metavar="LIST", help="Ids of nodes, such as 0-499,700.")]
NpuNumbers = Annotated[str, typer.Option("--npus", metavar="LIST", help="NPUs, such as 0-7,16.")]
NodeNames = Annotated[list[str], typer.Option("--name", metavar="PATTERN", help=_PATTERN)]


def number_ranges(option: str, text: str) -> tuple[tuple[int, int], ...] | None:
    """Return the ranges (first, last) of a list such as 0-7,16; None for an empty text.

    Args:
        text: The list, with commas and hyphens.
        option: The name of the option, for errors.
    """
    if not text.strip():
        return None
    ranges = []
    for part in text.split(","):
        ends = part.strip().split("-")
        # more digits than 64 bits have are refused before int() reads them
        if not 1 <= len(ends) <= 2 or not all(end.strip().isdecimal() and len(end) < 20 for end in ends):
            raise ConfigError(f"{option} {text}: found {part.strip()!r}; expected numbers and ranges, as 0-7,16")
        first, last = int(ends[0]), int(ends[-1])
        if last < first or last >= 1 << 64:
            raise ConfigError(f"{option} {text}: found the range {part.strip()}; expected one that ascends, as 0-7")
        ranges.append((first, last))
    return tuple(ranges)


def backend_of(name: str, ranks: "RankGather") -> "Backend":
    """Return the kind of workers of a value of --backend.

    Args:
        name: Value of --backend.
        ranks: Ranks of the process.
    """
    if name == "threads":
        return "threads"
    if name != "processes":
        raise ConfigError(f"--backend {name}: expected threads or processes")
    if ranks.size > 1:
        raise ConfigError(f"--backend processes: found {ranks.size} MPI ranks; expected threads there")
    return "processes"
