"""The cluster file of a calibration: a copy of the cluster's file with fitted constants and where they come from.

[calibration] has the provenance, which no run reads.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nadi import inputs
from nadi.errors import OutputError
from nadi.studies.calibration.calibrating import Calibration, CalibrationRefusedError
from nadi.studies.calibration.site_keys import cluster_tree, gpu_of, with_collectives, with_gpu
from nadi.studies.calibration.steps import StepSet, gpu_with


def write_cluster(calibrations: Sequence[Calibration], path: Path) -> None:
    """Write the cluster file of calibrations of one cluster, without those whose constants predict no better.

    Args:
        calibrations: The fitted constants of collectives, of steps, or of both.
        path: The file to write.

    Raises:
        CalibrationRefusedError: The rows bear no constant, or held-out rows err more with the fitted ones.
        OutputError: The file cannot be written.
    """
    accepted = [calibration for calibration in calibrations if not calibration.refusal()]
    if not accepted:
        reasons = "; ".join(calibration.refusal() for calibration in calibrations)
        raise CalibrationRefusedError(f"{path}: not written: {reasons}")
    try:
        inputs.write_whole(path, _text(accepted))
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from None


def _text(calibrations: Sequence[Calibration]) -> str:
    """Return the content of the file."""
    cluster = calibrations[0].cluster
    tree = cluster_tree(cluster, max(calibration.rows.gpus for calibration in calibrations))
    provenance: dict[str, Any] = {}
    lines = [f"# {cluster} with constants that `nadi calibrate` fitted to measurements of a site."]
    for calibration in calibrations:
        if isinstance(calibration.rows, StepSet):
            tree = with_gpu(tree, gpu_with(gpu_of(tree), calibration.factors))
            provenance["steps"] = _provenance(calibration)
        else:
            tree = with_collectives(tree, cluster, calibration.rows.gpus, calibration.factors)
            provenance |= _provenance(calibration)
        held = [calibration.errors(after=after, held_out=True) for after in (False, True)]
        rows = f"Held-out {calibration.rows.noun} err"
        lines += [
            f"# {rows} by {held[0].mean:.1%} before and by {held[1].mean:.1%} with these constants.",
            *(
                f"# {each.name} {each.constant.shown(each.value)} +- {each.shown_uncertainty}: "
                f"{each.constant.meaning}, cited {each.cited}"
                for each in calibration.constants
                if each.is_fitted
            ),
        ]
    tree["calibration"] = provenance
    return "\n".join([*map(inputs.shown, lines), *_toml_lines(tree)]) + "\n"


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
        "uncertainty": {each.name: each.shown_uncertainty for each in calibration.constants if each.is_fitted},
        "cited": {each.name: each.cited for each in calibration.constants if each.is_fitted},
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
