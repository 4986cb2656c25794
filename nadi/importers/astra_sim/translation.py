"""From the options of ASTRA-sim to the sections of a run file."""

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nadi.configuration.run_file import put_over
from nadi.errors import ConfigError
from nadi.importers.astra_sim import htsim, ns3
from nadi.importers.astra_sim.analytical import read_analytical
from nadi.importers.astra_sim.memory import read_memory
from nadi.importers.astra_sim.system import read_system
from nadi.importers.astra_sim.workload import read_groups_of, read_workload
from nadi.importers.file_sections import FileSections, warning
from nadi.inputs.limits import MAX_NPUS
from nadi.inputs.units import KIB

_CONTROL_BYTES = 8 * KIB  # size of a rendezvous message (system/Rendezvous*Data.cc)


class Options(NamedTuple):
    """Options of ASTRA-sim's command line that matter here."""

    workload: str  # prefix of the traces
    system: Path
    network: Path
    remote_memory: Path | None = None
    groups: str = "empty"  # path of the group file; none if it contains "empty"
    logical_topology: Path | None = None  # sizes of the logical dimensions, with ns-3
    queues_per_dim: int = 1
    injection_scale: float = 1.0  # factor of the endpoint delay
    rendezvous: bool = False
    congestion_aware: bool | None = None  # analytical back end; None = by the number of dimensions
    htsim: tuple[str, ...] = ()  # arguments of --htsim_opts, with htsim; empty for other back ends
    unused: tuple[str, ...] = ()  # given options that have no effect


def translated(options: Options) -> tuple[dict[str, Any], str]:
    """Return the sections of the run file that the options describe, and a warning, "" if there is none.

    Raises ConfigError, WorkloadError or TraceError: a file is wrong.
    """
    if options.htsim:
        network, dims = htsim.read_network(options.network, options.htsim)
    elif options.logical_topology is not None or ns3.is_ns3(options.network):
        network, dims = ns3.read_network(options.network, options.logical_topology)
    else:
        network, dims = read_analytical(options.network, congestion_aware=options.congestion_aware)
    unused = list(options.unused)
    if options.congestion_aware is not None and "congestion_aware" not in network.sections["network"]:
        unused.append("--congestion-aware" if options.congestion_aware else "--congestion-unaware")
    if options.rendezvous and "fidelity" in network.sections["network"]:
        unused.append("--rendezvous-protocol (needs --set network.fidelity=packet)")
    npus = math.prod(dims)
    if npus > MAX_NPUS:
        raise ConfigError(f"{options.network}: {npus:.6g} NPUs; expected at most {MAX_NPUS}")
    groups = read_groups_of(options.groups)
    system = read_system(
        options.system,
        dims,
        injection_scale=options.injection_scale,
        queues_per_dim=options.queues_per_dim,
        has_groups=bool(groups.sections),
    )
    parts = [
        (str(options.network), network),
        (str(options.system), system),
        (options.workload, read_workload(options.workload, npus)),
        (options.groups, groups),
        ("options", _rendezvous(is_on=options.rendezvous)._replace(unused=tuple(unused))),
    ]
    if options.remote_memory is not None:
        parts.append((str(options.remote_memory), read_memory(options.remote_memory, npus)))
    sections: Mapping[str, Any] = functools.reduce(put_over, (part.sections for _, part in parts), {})
    return dict(sections), warning(parts)


def _rendezvous(*, is_on: bool) -> FileSections:
    """Return the settings with which every message is announced and answered before its data moves."""
    return FileSections({"system": {"rendezvous": 1, "rendezvous_control": _CONTROL_BYTES}} if is_on else {})
