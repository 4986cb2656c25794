"""`nadi trace synth`: generate traces similar to given trace sets."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import AsJson, TracesOut
from nadi.cli.output import print_json
from nadi.launching.ending import unwound
from nadi.terminal import say

if TYPE_CHECKING:
    from nadi.et.synthesis import SynthesisRequest
    from nadi.workload import TraceSet

_WHERE = "Trace sets to learn from (folders with traces.json), or folders that contain such folders."
_LIKE = "Trace set whose stages, groups, passes and sizes are imitated. Default: an input chosen by --seed."
_NODES = "Approximate number of nodes per trace. Default: that of --like."
_RANKS = "Number of NPUs; groups that span a whole stage, mostly data parallelism, grow accordingly."
_GPU = "GPU (h100, ...) that determines durations of compute nodes with operators but without times."
_PREFIX = "synthetic"


def synth(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", help=_WHERE)],
    out: TracesOut,
    like: Path | None = typer.Option(None, metavar="DIR", help=_LIKE),
    nodes: int | None = typer.Option(None, min=4, max=100_000, metavar="N", help=_NODES),
    ranks: int | None = typer.Option(None, min=1, max=1 << 20, metavar="N", help=_RANKS),
    communication: float = typer.Option(1.0, min=1e-6, max=1e6, metavar="X", help="Factor of all communication sizes."),
    compute: float = typer.Option(1.0, min=1e-6, max=1e6, metavar="X", help="Factor of all compute times."),
    gpu: str | None = typer.Option(None, metavar="GPU", help=_GPU),
    seed: int = typer.Option(0, min=0, help="Seed of all random choices: the same seed gives the same traces."),
    as_json: AsJson = False,
) -> None:
    """Learn from trace sets and generate a new, valid one of any size that contains nothing of the originals."""
    from nadi.et import TraceError
    from nadi.et.synthesis import generate, learn, request_of, stream_of
    from nadi.workload import TraceSet, write_set

    folders = _sets_below(paths)
    sets = [_with_times(folder, gpu) for folder in folders]
    learned = learn(sets)
    if like is None:
        # the seed also picks the original whose size is taken
        request = learned.requests[seed % len(learned.requests)]
    else:
        request = request_of(stream_of(_with_times(like, gpu)))
    generated = generate(learned, _adjusted(request, nodes, ranks, communication, compute), seed)
    if not any(len(table) for table in generated.traces):
        raise TraceError("synthesis: no nodes, expected some")
    new_set = TraceSet(generated.traces, generated.trace_of_npu, generated.example_npu, generated.families)
    with unwound():
        write_set(out, new_set, _PREFIX)
    npus, traces, nodes = len(generated.trace_of_npu), len(generated.traces), sum(map(len, generated.traces))
    if as_json:
        print_json({"out": str(out), "npus": npus, "traces": traces, "nodes": nodes, "learned_from": len(sets)})
        return
    contents = f"{npus:,} NPUs, {traces} traces of {nodes:,} nodes in all, learned from {len(sets)} trace sets"
    say(f'{contents}; in a run file: [workload] traces = "{out}"')


def _sets_below(paths: list[Path]) -> list[Path]:
    """Return the folders of the trace sets at or below the paths, each once."""
    from nadi.et import TraceError

    folders: dict[Path, Path] = {}
    for path in paths:
        own = [file.parent for file in sorted(path.rglob("traces.json"))] if path.is_dir() else []
        if not own:
            raise TraceError(f"{path}: no trace set, expected a folder with traces.json there or below")
        folders.update({folder.resolve(): folder for folder in own})
    return list(folders.values())


def _with_times(folder: Path, gpu_name: str | None) -> "TraceSet":
    """Return a trace set whose compute nodes have durations: recorded ones, or on a GPU."""
    from nadi.et import NodeType, TraceError
    from nadi.workload import read_set
    from nadi.workload.program import with_times_on

    traces = read_set(folder)
    traces = dataclasses.replace(traces, traces=list(map(with_times_on(gpu_name), traces.traces)))
    is_compute = [table.type == NodeType.COMP_NODE for table in traces.traces]
    timed = [table.duration_micros[own].any() for table, own in zip(traces.traces, is_compute, strict=True)]
    if any(own.any() for own in is_compute) and not any(timed):
        raise TraceError(f"{folder}: compute nodes without durations, expected some, or --gpu NAME that works them out")
    return traces


def _adjusted(
    request: "SynthesisRequest", nodes: int | None, ranks: int | None, bytes_factor: float, compute_factor: float
) -> "SynthesisRequest":
    """Return a request with the options' numbers of nodes and NPUs, bytes and compute time."""
    from nadi.et.synthesis import MICROS

    layout = request.layout if ranks is None else request.layout.scaled(ranks)
    times = 1.0 if nodes is None else nodes * layout.roles / request.events
    return request._replace(
        layout=layout,
        events=round(request.events * times),
        messages={ends: max(round(count * times), 1) for ends, count in request.messages.items()},
        totals={
            key: total * times * (compute_factor if key[0] == MICROS else bytes_factor)
            for key, total in request.totals.items()
        },
    )
