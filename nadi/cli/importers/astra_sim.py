"""`nadi astra-sim`: run the files of ASTRA-sim 2 unchanged, with its options."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import typer

from nadi.cli.options import named_path
from nadi.importers import TranslatedRun

_WORKLOAD = "Prefix of the traces, PREFIX.<npu>.et, or layers of ASTRA-sim 1.0."
_SYSTEM = "System file (JSON)."
_NETWORK = "Network: YAML or JSON of the analytical back ends, or config.txt of ns-3."
_LOGICAL = "Logical dimensions (JSON), with a network of ns-3."
_MEMORY = "Remote memory (JSON)."
_GROUPS = 'Communicator groups (JSON); a path that contains "empty" means none.'
_LOGGING = "Folder in which log.log keeps the lines that ASTRA-sim prints."
_QUEUES = "Number of queues per dimension, which share its active chunks."
_INJECTION = "Factor of the endpoint delay."
_RENDEZVOUS = "Announce each message before its data moves: true or false."
_AWARE = "Analytical back end. Default: aware with one dimension, else unaware."
_HTSIM = "Protocol of htsim: tcp; its other options follow --htsim_opts, the last option: -topo FILE."
_HTSIM_OPTIONS = "--htsim_opts"
_NO_EFFECT = "Accepted; ASTRA-sim does not use it either."
_WRITE = "Write the equivalent run file, and do not run it."
SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True}  # for what follows --htsim_opts


def _boolean(text: str) -> bool:
    """Return the value of a switch as ASTRA-sim's parsers take it."""
    if text.lower() not in {"true", "false", "1", "0"}:
        raise typer.BadParameter(f"found {text!r}; expected true or false", param_hint="--rendezvous-protocol")
    return text.lower() in {"true", "1"}


def _htsim_options(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return --htsim_opts and the words behind it, which are htsim's; refuse other unknown options."""
    if arguments and arguments[0] != _HTSIM_OPTIONS:
        raise typer.BadParameter(f"found {arguments[0]}; expected a known option, or {_HTSIM_OPTIONS} before it")
    return tuple(arguments)


def read(
    context: typer.Context,
    workload_configuration: str = typer.Option(..., metavar="PREFIX", show_default=False, help=_WORKLOAD),
    system_configuration: Path = typer.Option(..., metavar="FILE", parser=named_path, help=_SYSTEM),
    network_configuration: Path = typer.Option(..., metavar="FILE", parser=named_path, help=_NETWORK),
    remote_memory_configuration: Path | None = typer.Option(None, metavar="FILE", parser=named_path, help=_MEMORY),
    comm_group_configuration: str = typer.Option("empty", metavar="FILE", help=_GROUPS),
    logical_topology_configuration: Path | None = typer.Option(None, metavar="FILE", parser=named_path, help=_LOGICAL),
    logging_folder: Path | None = typer.Option(None, metavar="DIR", parser=named_path, help=_LOGGING),
    logging_configuration: str = typer.Option("empty", metavar="FILE", help=_NO_EFFECT),
    num_queues_per_dim: int = typer.Option(1, min=1, max=1 << 16, metavar="N", help=_QUEUES),
    injection_scale: float = typer.Option(1.0, min=0, max=1e6, metavar="FACTOR", help=_INJECTION),
    compute_scale: float = typer.Option(1.0, metavar="FACTOR", help=_NO_EFFECT),
    comm_scale: float = typer.Option(1.0, metavar="FACTOR", help=_NO_EFFECT),
    htsim_proto: str = typer.Option("", metavar="NAME", show_default=False, help=_HTSIM),
    rendezvous_protocol: str = typer.Option("false", metavar="BOOL", help=_RENDEZVOUS),
    congestion_aware: bool | None = typer.Option(
        None, "--congestion-aware/--congestion-unaware", show_default=False, help=_AWARE
    ),
    write: Path | None = typer.Option(None, metavar="RUN.toml", parser=named_path, help=_WRITE),
) -> TranslatedRun:
    """Run files of ASTRA-sim 2 unchanged, and print its lines beside Nadi's report."""
    from nadi.importers.astra_sim import Options, print_lines, translated

    given = {
        "--compute-scale": compute_scale != 1,
        "--comm-scale": comm_scale != 1,
        "--logging-configuration": "empty" not in logging_configuration,
    }
    options = Options(
        workload=workload_configuration,
        system=system_configuration,
        network=network_configuration,
        remote_memory=remote_memory_configuration,
        groups=comm_group_configuration,
        logical_topology=logical_topology_configuration,
        queues_per_dim=num_queues_per_dim,
        injection_scale=injection_scale,
        rendezvous=_boolean(rendezvous_protocol),
        congestion_aware=congestion_aware,
        htsim=_htsim_options(context.args) or ((_HTSIM_OPTIONS,) if htsim_proto else ()),
        unused=tuple(option for option, is_given in given.items() if is_given),
    )
    sections, warning = translated(options)
    return TranslatedRun(
        sections,
        (f"warning: {warning}",) * bool(warning),
        warns=False,  # about keys of the files, which have other names there
        before_report=partial(print_lines, log_folder=logging_folder),
        run_file=write,
        origin=f"From files of ASTRA-sim: {system_configuration}, {network_configuration}",
    )
