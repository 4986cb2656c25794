"""`nadi simai`: run SimAI's files unchanged, with the options of SimAI_simulator and SimAI_analytical."""

import os
import time
from pathlib import Path

import typer

from nadi.cli.options import Force, Overrides, Quiet, named_path
from nadi.cli.simulating import run_and_report
from nadi.configuration.bounds import MAX_GPUS, MAX_WORKERS
from nadi.terminal.printing import say

_WORKLOAD = "Workload of layers, as AICB writes it."
_TOPOLOGY = "Topology: SimAI's text, or any SPEC of `nadi topology`."
_CONFIGURATION = "SimAI.conf. Default: Nadi's own network settings."
_GPUS = "Number of GPUs. Default: those of the topology, or all_gpus of the workload."
_THREADS = "Number of threads."
_BANDWIDTHS = "Bus bandwidths (busbw.yaml) in place of a topology, as for SimAI_analytical."
_FIDELITY = "Network model: `nadi net fidelities` lists them."
_OUT = "Folder for summary.json and the tables."


def simai(
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
    out: Path | None = typer.Option(None, metavar="DIR", parser=named_path, help=_OUT),
    overrides: Overrides = [],
    force: Force = False,
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON instead of the report."),
    quiet: Quiet = False,
) -> None:
    """Run files of SimAI unchanged: a workload of layers on a topology, packet by packet, or at bus bandwidths."""
    begin_s = time.monotonic()
    from nadi.api.running import RunRequest
    from nadi.configuration.run_file import load_config
    from nadi.importers.simai.translation import SimaiOptions, translated
    from nadi.launching.launcher import connected_ranks
    from nadi.launching.world import together

    ranks = connected_ranks(os.environ)
    with together(ranks):
        options = SimaiOptions(workload, topology, configuration, gpus or 0, bandwidths)
        translation = translated(options, os.environ)
        named = [f"engine.workers={threads}"] * (threads > 1) + [f'network.fidelity="{fidelity}"'] * bool(fidelity)
        config = load_config(None, [*named, *overrides], translation.sections)
    for remark in translation.remarks if ranks.rank == 0 else ():
        say(f"nadi: {remark}", err=True)
    run_and_report(RunRequest(config, out), ranks, begin_s, force=force, as_json=as_json, quiet=quiet)
