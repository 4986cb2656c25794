"""`nadi trace synth`: new traces like those of trace sets."""

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nadi.cli.options import named_path

if TYPE_CHECKING:
    from et.synthesis import Wanted
    from workload import TraceSet

_WHERE = "Trace sets to learn from (folders with traces.json), or folders with such below."
_LIKE = "A trace set with the stages, groups, passes and sizes that are wanted; else one learned from, by --seed."
_NODES = "Nodes of each trace, about; else those of --like."
_RANKS = "NPUs; the groups that reach over a whole stage, data parallelism mostly, grow with them."
_GPU = "Compute nodes that say operators and no time take what they take on it (h100, ...)."
_MODEL = "network (needs PyTorch), counts (an n-gram, far worse), or auto: network where PyTorch is installed."
_PREFIX = "synthetic"


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command()(synth)


def synth(
    where: list[Path] = typer.Argument(metavar="DIR...", help=_WHERE),
    out: Path = typer.Option(
        ..., "-o", "--out", metavar="DIR", parser=named_path, help="Folder for the new trace set."
    ),
    like: Path | None = typer.Option(None, metavar="DIR", help=_LIKE),
    nodes: int | None = typer.Option(None, min=4, max=100_000, metavar="N", help=_NODES),
    ranks: int | None = typer.Option(None, min=1, max=1 << 20, metavar="N", help=_RANKS),
    communication: float = typer.Option(1.0, min=1e-6, max=1e6, metavar="X", help="Times as many bytes in all."),
    compute: float = typer.Option(1.0, min=1e-6, max=1e6, metavar="X", help="Times as much compute time."),
    gpu: str | None = typer.Option(None, metavar="GPU", help=_GPU),
    model: str = typer.Option("auto", metavar="MODEL", help=_MODEL),
    epochs: int = typer.Option(32, min=1, max=10_000, help="How often the network sees each trace set."),
    seed: int = typer.Option(0, min=0, help="Of all that is drawn: the same seed gives the same traces."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Learn from trace sets and generate a new one: valid, as large as is wanted, with nothing of the originals."""
    from et import TraceError
    from et.synthesis import generate, learn, stream_of, wanted_of
    from nadi.launching.ending import unwound
    from nadi.terminal.printing import say
    from workload import TraceSet, write_set

    kind = _kind(model)
    folders = _sets_below(where)
    sets = [_with_times(folder, gpu) for folder in folders]
    wanted = None if like is None else wanted_of(stream_of(_with_times(like, gpu)))
    bits: list[float] = []
    learned = learn(sets, kind, seed, epochs=epochs, told=lambda _, found: bits.append(found))
    if wanted is None:
        wanted = learned.wanted[seed % len(learned.wanted)]
    asked = _steered(wanted, nodes, ranks, communication, compute)
    found = generate(learned, asked, seed)
    if not any(len(table) for table in found.traces):
        raise TraceError("synthesis: no nodes, expected some")
    with unwound():
        write_set(out, TraceSet(found.traces, found.trace_of_npu, found.example_npu, found.families), _PREFIX)
    said = {
        "out": str(out),
        "npus": len(found.trace_of_npu),
        "traces": len(found.traces),
        "nodes": sum(map(len, found.traces)),
        "learned_from": len(sets),
        "model": kind,
        "training_bits_per_node": bits[-1] if bits else None,
        "is_whole": found.is_whole,
    }
    if as_json:
        typer.echo(json.dumps(said, indent=2))
        return
    say(
        f"{said['npus']:,} NPUs, {said['traces']} traces of {said['nodes']:,} nodes in all, learned from {len(sets)} "
        f'trace sets by {_words(kind)}; in a run file: [workload] traces = "{out}"'
    )
    if not found.is_whole:
        say("no stream ended by itself near the wanted length: the likeliest was cut there")


def _kind(model: str) -> Any:  # noqa: ANN401 - a ModelKind
    from et import TraceError

    if model not in {"auto", "network", "counts"}:
        raise TraceError(f"--model {model}: expected auto, network or counts")
    has_torch = importlib.util.find_spec("torch") is not None
    if model == "network" and not has_torch:
        raise TraceError("--model network: PyTorch is not installed, expected it: pip install 'nadi[pytorch]'")
    return model if model != "auto" else "network" if has_torch else "counts"


def _words(kind: str) -> str:
    return "a recurrent network" if kind == "network" else "an n-gram"


def _sets_below(where: list[Path]) -> list[Path]:
    from et import TraceError

    found: dict[Path, Path] = {}
    for path in where:
        own = [file.parent for file in sorted(path.rglob("traces.json"))] if path.is_dir() else []
        if not own:
            raise TraceError(f"{path}: no trace set, expected a folder with traces.json there or below")
        found.update({folder.resolve(): folder for folder in own})
    return list(found.values())


def _with_times(folder: Path, gpu: str | None) -> "TraceSet":
    """A trace set whose compute nodes have durations."""
    from et import NodeType, TraceError
    from workload import read_set
    from workload.program.recorded import with_times_on

    traces = read_set(folder)
    traces = dataclasses.replace(traces, traces=list(map(with_times_on(gpu), traces.traces)))
    is_compute = [table.type == NodeType.COMP_NODE for table in traces.traces]
    timed = [table.duration_micros[own].any() for table, own in zip(traces.traces, is_compute, strict=True)]
    if any(own.any() for own in is_compute) and not any(timed):
        raise TraceError(f"{folder}: compute nodes without durations, expected some, or --gpu NAME that works them out")
    return traces


def _steered(wanted: "Wanted", nodes: int | None, ranks: int | None, communication: float, compute: float) -> "Wanted":
    """What is asked for, from what a trace set was."""
    from et.synthesis.conditions import MICROS

    layout = wanted.layout if ranks is None else wanted.layout.scaled(ranks)
    times = 1.0 if nodes is None else nodes * layout.roles / wanted.events
    return wanted._replace(
        layout=layout,
        events=round(wanted.events * times),
        messages={ends: max(round(many * times), 1) for ends, many in wanted.messages.items()},
        totals={
            key: total * times * (compute if key[0] == MICROS else communication)
            for key, total in wanted.totals.items()
        },
    )
