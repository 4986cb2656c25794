"""Keys of a cluster's file, as it is and with a site's constants.

Factors on NCCL's constants are parameters of the algorithms in [system.collectives]; the factor on the rate of NICs is
the header of packets in [network]. The time of hosts in a step and the rates of operators are parameters of the GPU.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nadi.inputs import plug_ins
from nadi.inputs.documents import read_toml
from nadi.inputs.units import format_bytes
from nadi.studies.calibration.constants import WIRE, Factors, algorithm_with, header_bytes
from nadi.studies.calibration.model import SiteFabric, spec_of
from nadi.studies.calibration.rows import KINDS
from nadi.topologies import TopologyError, parse_spec
from nadi.topologies.clusters import Cluster, find
from nadi.topologies.machines import is_machine, machine
from nadi.workload.compute import gpu_names


def _is_nccl(fabric: SiteFabric, kind: str) -> bool:
    try:
        return bool(fabric.algorithm(kind))
    except ValueError:
        return False


def cluster_tree(cluster: str, gpus: int) -> dict[str, Any]:
    """Return the keys of a cluster's file, or of one for a machine.

    Args:
        cluster: The cluster as users write it: a name or file, or a machine.
        gpus: The number of GPUs that were measured.
    """
    values = dict(parse_spec(cluster))
    name = str(values.pop("name"))
    if is_machine(name) and "gpus" not in values:
        try:
            return _tree_of_cluster(name, values) if "npus" not in values else _tree_of_machine(name, values, gpus)
        except TopologyError:
            return _tree_of_machine(name, values, gpus)
    return _tree_of_cluster(name, values)


def with_collectives(tree: Mapping[str, Any], cluster: str, gpus: int, factors: Factors) -> dict[str, Any]:
    """Return the keys of a cluster's file with constants of collectives.

    Args:
        tree: The keys of the file.
        cluster: The cluster as users write it.
        gpus: The number of GPUs that were measured.
        factors: The values of the constants.
    """
    fabric = SiteFabric(spec_of(cluster, gpus))
    own = dict(tree.get("system", {}).get("collectives", {}))
    named = {
        kind: algorithm_with(fabric.algorithm(kind), factors) for kind in KINDS if kind in own or _is_nccl(fabric, kind)
    }
    network = dict(tree.get("network", {}))
    if WIRE in factors:
        network["header"] = format_bytes(header_bytes(fabric.settings, factors[WIRE]))
    return {**tree, "system": {**tree.get("system", {}), "collectives": own | named}, "network": network}


def gpu_of(tree: Mapping[str, Any]) -> str:
    """Return the GPU of a cluster's file, as its runs take it.

    Args:
        tree: The keys of the file.
    """
    return str(tree.get("compute", {}).get("gpu", tree["gpu"]))


def with_gpu(tree: Mapping[str, Any], gpu: str) -> dict[str, Any]:
    """Return the keys of a cluster's file with another GPU.

    Args:
        tree: The keys of the file.
        gpu: The GPU as users write it.
    """
    compute = {"compute": tree["compute"] | {"gpu": gpu}} if "gpu" in tree.get("compute", {}) else {}
    return {**tree, "gpu": gpu, **compute}


def _tree_of_cluster(name: str, values: Mapping[str, object]) -> dict[str, Any]:
    """Return the keys of a cluster's file, with the parameters that are given with its name."""
    path = Path(name)
    cluster: Cluster = find(str(path.resolve()) if path.is_file() else name)
    written = cluster.model_dump(mode="json", exclude_unset=True, exclude={"name", "parameters", "calibration", "host"})
    tree = {"summary": f"{cluster.summary or name}, calibrated", **{k: v for k, v in written.items() if k != "summary"}}
    # as written, with units, which the parsed values have lost
    file = path if path.is_file() else plug_ins.toml_file("cluster", name, TopologyError)
    given = read_toml(file, "the file of a cluster", TopologyError)
    tree |= {key: given[key] for key in ("host",) if key in given}
    parameters = {**cluster.parameters, **{key: value for key, value in values.items() if key != "gpus"}}
    if "gpus" in values:
        tree["gpus"] = int(str(values["gpus"]))
    return tree | ({"parameters": parameters} if parameters else {})


def _tree_of_machine(name: str, values: Mapping[str, object], measured: int) -> dict[str, Any]:
    """Return the keys of a cluster of a machine, with as many GPUs as are named or measured."""
    own = machine(name)
    known = [gpu for gpu in gpu_names() if gpu in name]
    per_host = own.domain_gpus
    # whole servers, so that the file serves for more GPUs than were measured
    gpus = max(per_host, int(str(values.get("npus", measured))))
    fabric = {"name": name, **{key: value for key, value in values.items() if key != "npus"}}
    return {
        "summary": f"{own.summary} Calibrated",
        "gpu": max(known, key=len, default=own.accelerator),
        "gpus_per_host": per_host,
        "gpus": gpus,
        "fabric": fabric,
    }
