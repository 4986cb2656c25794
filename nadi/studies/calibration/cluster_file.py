"""The cluster file of a calibration: a copy of the cluster's file with fitted constants and where they come from.

Factors on NCCL's constants are parameters of the algorithms in [system.collectives]; the factor on the rate of NICs is
the header of packets in [network]. [calibration] has the provenance, which no run reads.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nadi import inputs
from nadi.errors import OutputError
from nadi.inputs.documents import read_toml
from nadi.inputs.units import format_bytes
from nadi.studies.calibration.calibrating import Calibration, CalibrationRefusedError, spec_of
from nadi.studies.calibration.constants import WIRE, algorithm_with, header_bytes
from nadi.studies.calibration.model import SiteFabric
from nadi.studies.calibration.rows import KINDS
from nadi.topologies import TopologyError, parse_spec
from nadi.topologies.clusters import Cluster, find
from nadi.topologies.machines import is_machine, machine
from nadi.workload.compute import gpu_names

_GPUS_PER_RACK, _GPUS_PER_SERVER = 72, 8


def write_cluster(calibration: Calibration, path: Path) -> None:
    """Write the cluster file of a calibration.

    Args:
        calibration: The fitted constants.
        path: The file to write.

    Raises:
        CalibrationRefusedError: The rows bear no constant, or held-out rows err more with the fitted ones.
        OutputError: The file cannot be written.
    """
    refusal = calibration.refusal()
    if refusal:
        raise CalibrationRefusedError(f"{path}: not written: {refusal}")
    try:
        inputs.write_whole(path, _text(calibration))
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from None


def _text(calibration: Calibration) -> str:
    """Return the content of the file."""
    tree = _cluster_tree(calibration)
    gpus = max(row.gpus for row in calibration.rows.rows)
    fabric = SiteFabric(spec_of(calibration.cluster, gpus))
    factors = calibration.factors
    system = dict(tree.get("system", {}))
    own = dict(system.get("collectives", {}))
    system["collectives"] = own | {
        kind: algorithm_with(fabric.algorithm(kind), factors) for kind in KINDS if kind in own or _is_nccl(fabric, kind)
    }
    tree["system"] = system
    network = dict(tree.get("network", {}))
    if WIRE in factors:
        network["header"] = format_bytes(header_bytes(fabric.settings, factors[WIRE]))
    tree["network"] = network
    tree["calibration"] = _provenance(calibration)
    held = [calibration.errors(after=after, held_out=True) for after in (False, True)]
    lines = [
        f"# {calibration.cluster} with constants that `nadi calibrate` fitted to measurements of a site.",
        f"# Held-out rows err by {held[0].mean:.1%} before and by {held[1].mean:.1%} with these constants.",
        *(
            f"# {each.name} {each.factor:g} +- {each.uncertainty:.1%}: {each.meaning}, cited {each.cited}"
            for each in calibration.constants
            if each.factor != 1.0
        ),
    ]
    return "\n".join([*map(inputs.shown, lines), *_toml_lines(tree)]) + "\n"


def _is_nccl(fabric: SiteFabric, kind: str) -> bool:
    try:
        return bool(fabric.algorithm(kind))
    except ValueError:
        return False


def _cluster_tree(calibration: Calibration) -> dict[str, Any]:
    """Return the keys of the cluster's file, or of one for a machine; without the constants that were fitted."""
    values = dict(parse_spec(calibration.cluster))
    name = str(values.pop("name"))
    if is_machine(name) and "gpus" not in values:
        try:
            return (
                _tree_of_cluster(name, values) if "npus" not in values else _tree_of_machine(name, values, calibration)
            )
        except TopologyError:
            return _tree_of_machine(name, values, calibration)
    return _tree_of_cluster(name, values)


def _tree_of_cluster(name: str, values: Mapping[str, object]) -> dict[str, Any]:
    """Return the keys of a cluster's file, with the parameters that are given with its name."""
    path = Path(name)
    cluster: Cluster = find(str(path.resolve()) if path.is_file() else name)
    written = cluster.model_dump(mode="json", exclude_unset=True, exclude={"name", "parameters", "calibration", "host"})
    tree = {"summary": f"{cluster.summary or name}, calibrated", **{k: v for k, v in written.items() if k != "summary"}}
    if path.is_file():
        given = read_toml(path, "the file of a cluster", TopologyError)
        tree |= {key: given[key] for key in ("host",) if key in given}
    elif "host" in cluster.model_fields_set:
        tree["host"] = {key: value for key, value in cluster.host.model_dump().items() if value is not None}
    parameters = {**cluster.parameters, **{key: value for key, value in values.items() if key != "gpus"}}
    if "gpus" in values:
        tree["gpus"] = int(str(values["gpus"]))
    return tree | ({"parameters": parameters} if parameters else {})


def _tree_of_machine(name: str, values: Mapping[str, object], calibration: Calibration) -> dict[str, Any]:
    """Return the keys of a cluster of a machine, with as many GPUs as are named or measured."""
    own = machine(name)
    known = [gpu for gpu in gpu_names() if gpu in name]
    measured = max(row.gpus for row in calibration.rows.rows)
    per_host = _GPUS_PER_RACK if own.rack else _GPUS_PER_SERVER
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


def _provenance(calibration: Calibration) -> dict[str, Any]:
    """Return the table [calibration]."""
    errors = {
        f"{part}_{when}": round(calibration.errors(after=when == "after", held_out=part == "held_out").mean, 4)
        for part in ("fitted", "held_out")
        for when in ("before", "after")
    }
    return {
        "cluster": calibration.cluster,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "rows": len(calibration.rows.rows),
        "held_out": sum(calibration.rows.is_held_out),
        "errors": errors,
        "factors": calibration.factors,
        "uncertainty": {each.name: round(each.uncertainty, 4) for each in calibration.constants if each.factor != 1.0},
        "cited": {each.name: each.cited for each in calibration.constants if each.factor != 1.0},
        "files": [source._asdict() for source in calibration.rows.sources],
    }


def _toml_lines(tree: Mapping[str, Any]) -> list[str]:
    """Return a tree as TOML: values first, then a section for each table and for each entry of a list of tables."""
    lines = [f"{key} = {_toml(value)}" for key, value in tree.items() if not _is_section(value)]
    for key, value in tree.items():
        if not _is_section(value) or not value:
            continue
        for table in value if isinstance(value, list | tuple) else [value]:
            head = f"[[{key}]]" if isinstance(value, list | tuple) else f"[{key}]"
            lines += ["", head, *(f"{_key(inner)} = {_toml(table[inner])}" for inner in table)]
    return lines


def _is_section(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict))


def _key(key: str) -> str:
    return key if key.replace("_", "a").replace("-", "a").isalnum() and key.isascii() else json.dumps(key)


def _toml(value: Any) -> str:  # noqa: ANN401 - of TOML
    """Return a value as one line of TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    return json.dumps(value)
