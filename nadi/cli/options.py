"""Options that several commands share, and their parsers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.completion import topology_names
from nadi.configuration.bounds import MAX_WORKERS
from nadi.errors import ConfigError

if TYPE_CHECKING:
    from nadi.launching.workers import Backend
    from nadi.launching.world import RankGather


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
