"""`nadi simai`: run SimAI's files unchanged, with the options of SimAI_simulator and SimAI_analytical."""

import os
from pathlib import Path

import typer

from nadi.cli.options import named_path
from nadi.configuration import MAX_GPUS, MAX_WORKERS
from nadi.importers import TranslatedRun

_WORKLOAD = "Workload of layers, as AICB writes it."
_TOPOLOGY = "Topology: SimAI's text, or any SPEC of `nadi topology`."
_CONFIGURATION = "SimAI.conf. Default: Nadi's own network settings."
_GPUS = "Number of GPUs. Default: those of the topology, or all_gpus of the workload."
_THREADS = "Number of threads."
_BANDWIDTHS = "Bus bandwidths (busbw.yaml) in place of a topology, as for SimAI_analytical."
_FIDELITY = "Network model: `nadi net fidelities` lists them."


def read(
    workload: Path = typer.Option(
        ..., "-w", "--workload", metavar="FILE", show_default=False, parser=named_path, help=_WORKLOAD
    ),
    topology: str = typer.Option("", "-n", "--network-topo", metavar="FILE", show_default=False, help=_TOPOLOGY),
    configuration: Path | None = typer.Option(
        None, "-c", "--network-conf", metavar="FILE", parser=named_path, help=_CONFIGURATION
    ),
    gpus: int | None = typer.Option(
        None, "-g", "--gpus", min=1, max=MAX_GPUS, metavar="N", show_default=False, help=_GPUS
    ),
    threads: int = typer.Option(1, "-t", "--thread", min=1, max=MAX_WORKERS, metavar="N", help=_THREADS),
    bandwidths: Path | None = typer.Option(
        None, "-busbw", "--bus-bandwidth", metavar="FILE", parser=named_path, help=_BANDWIDTHS
    ),
    fidelity: str = typer.Option("", metavar="NAME", show_default=False, help=_FIDELITY),
) -> TranslatedRun:
    """Run files of SimAI unchanged: a workload of layers on a topology, packet by packet, or at bus bandwidths."""
    from nadi.importers.simai import SimaiOptions, translated

    named = (f"engine.workers={threads}",) * (threads > 1) + (f'network.fidelity="{fidelity}"',) * bool(fidelity)
    options = SimaiOptions(workload, topology, configuration, gpus or 0, bandwidths)
    return translated(options, os.environ)._replace(overrides=named)
