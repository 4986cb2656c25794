"""Fabrics, traces and algorithms that a Python program passes as values, as sections of a run file."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nadi.errors import ConfigError

if TYPE_CHECKING:
    from nadi.workload import Plans


def with_topology(sections: Mapping[str, Any], topology: Any) -> tuple[dict[str, Any], int | None]:  # noqa: ANN401
    """Return the sections of a run file with the fabric, and its number of NPUs if the fabric is a value.

    Args:
        sections: Sections of a run file with their keys.
        topology: The fabric: a Graph, a networkx graph, a specification, or a mapping of keys.
    """
    from nadi.configuration.run_file import put_over
    from nadi.topologies import Graph, from_networkx

    if isinstance(topology, Mapping):
        return put_over(sections, {"topology": topology}), None
    if isinstance(topology, str):
        return {**sections, "topology": {"spec": topology}}, None
    if hasattr(topology, "is_directed"):
        topology = from_networkx(topology)
    if not isinstance(topology, Graph):
        found = type(topology).__name__
        raise ConfigError(f"topology: found a {found}; expected a Graph, a spec, or a mapping of keys")
    return {**sections, "topology": {"graph": topology}}, topology.npus


def with_workload(
    sections: Mapping[str, Any],
    workload: Any,  # noqa: ANN401 - any of what `simulate` takes
    groups: Mapping[str, Sequence[int]] | None,
    npus: int | None,
) -> dict[str, Any]:
    """Return the sections with the traces; npus: number of NPUs of the fabric, None = build it if needed.

    `workload` and `groups` are those of `simulate`.
    """
    from nadi.configuration.run_file import put_over
    from nadi.et import TraceTable
    from nadi.workload import TraceSet

    if isinstance(workload, (Mapping, TraceSet)) and groups is not None:
        raise ConfigError("groups: found beside a mapping or a TraceSet; expected a TraceTable for each NPU")
    if isinstance(workload, Mapping):
        return put_over(sections, {"workload": workload})
    if isinstance(workload, TraceTable):
        workload = [workload] * _npus(sections, npus)
    traces = workload if isinstance(workload, TraceSet) else TraceSet.of(workload, groups)
    return {**sections, "workload": {"trace_set": traces}}


def _npus(sections: Mapping[str, Any], npus: int | None) -> int:
    """Return the number of NPUs of the fabric, which is built if the number is unknown."""
    if npus is not None:
        return npus
    from nadi.configuration.machine import TopologySection
    from nadi.topologies import build

    if "topology" not in sections:
        raise ConfigError("workload: one trace for all NPUs; expected the argument topology, not a run file")
    return build(TopologySection.model_validate(sections["topology"]).source()).npus


def with_schedules(sections: Mapping[str, Any], schedules: "Mapping[str, Plans]") -> dict[str, Any]:
    """Return the sections of a run file with custom collective algorithms by kind.

    Args:
        sections: Sections of a run file with their keys.
        schedules: Plans of the algorithms by kind of collective.
    """
    from nadi.configuration.run_file import put_over
    from nadi.workload import Plans
    from nadi.workload.collectives.custom import keep

    for kind, plans in schedules.items():
        if not isinstance(plans, Plans):
            raise ConfigError(f"schedules: {kind}: found a {type(plans).__name__}; expected Plans")
    kept = {kind: keep(plans, kind) for kind, plans in schedules.items()}
    return put_over(sections, {"system": {"collectives": kept}})
