"""What `nadi calibrate` prints: constants, errors before and after, rows that are left out, and the same as JSON."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group

from nadi.studies.calibration.calibrating import Calibration
from nadi.studies.calibration.rows import SiteRow
from nadi.studies.calibration.steps import StepRow
from nadi.terminal import FittedTable, name_column, text_column


def calibration_tables(calibrations: Sequence[Calibration]) -> Group:
    """Return the tables of constants and errors, with notes.

    Args:
        calibrations: The fitted constants of collectives, of steps, or of both.
    """
    return Group(*(table for calibration in calibrations for table in _tables(calibration)))


def _tables(calibration: Calibration) -> tuple[FittedTable, FittedTable]:
    """Return the tables of constants and of errors of a calibration."""
    noun = calibration.rows.noun
    columns = ("cited", 2), "value", ("uncertainty", 1), text_column("decided by, or why it stays")
    constants = FittedTable(f"constants of {noun}", name_column("constant"), text_column("of", 3), *columns)
    for each in calibration.constants:
        value, uncertainty = each.constant.shown(each.value), each.shown_uncertainty if each.is_fitted else ""
        constants.add_row(each.name, each.constant.meaning, each.cited, value, uncertainty, each.why)
    errors = FittedTable(
        f"errors of times of {noun}", name_column(noun), "count", "", "mean", ("worst", 1), ("mean, signed", 2)
    )
    for part, held_out in (("fitted", False), ("held out", True)):
        for when, after in (("before", False), ("after", True)):
            found = calibration.errors(after=after, held_out=held_out)
            errors.add_row(part, found.rows, when, f"{found.mean:.1%}", f"{found.worst:.1%}", f"{found.bias:+.1%}")
    errors.notes += _notes(calibration)
    return constants, errors


def _notes(calibration: Calibration) -> list[str]:
    """Return sentences about the rows."""
    rows = calibration.rows
    repeated = "" if rows.repeats is None else f"; out of place and in place differ by {rows.repeats:.1%} in the mean"
    notes = [
        f"held out: {rows.held_out_rule}",
        f"fitted {rows.noun} scatter by {calibration.scatter:.1%} around the fit, which no constant removes{repeated}",
        rows.not_fitted,
    ]
    notes += [f"left out: {place}: {reason}" for place, reason in rows.defects]
    far = (f"far from the fit: {place}: measured {ratio:.2f} times the prediction" for place, ratio in calibration.far)
    return [*notes, *far]


def calibration_document(calibrations: Sequence[Calibration]) -> dict[str, Any]:
    """Return the document that --json prints: the cluster, and what was found by "collectives" and "steps".

    Args:
        calibrations: The fitted constants of collectives, of steps, or of both.
    """
    found = {calibration.rows.noun: _document(calibration) for calibration in calibrations}
    return {"cluster": calibrations[0].cluster, **found}


def _document(calibration: Calibration) -> dict[str, Any]:
    """Return what was found of collectives or steps."""
    measured: Sequence[SiteRow | StepRow] = calibration.rows.rows
    rows = zip(
        measured,
        calibration.rows.is_held_out,
        calibration.before_us.tolist(),
        calibration.after_us.tolist(),
        strict=True,
    )
    return {
        "constants": [
            {
                "name": each.name,
                "meaning": each.constant.meaning,
                "unit": "ms" if each.constant.unit_ms else "",
                "cited": each.cited,
                "value": each.value,
                "uncertainty": each.uncertainty * (each.constant.unit_ms or 1.0),
                "why": each.why,
            }
            for each in calibration.constants
        ],
        "errors": {
            part: {
                when: vars(calibration.errors(after=when == "after", held_out=part == "held_out"))
                for when in ("before", "after")
            }
            for part in ("fitted", "held_out")
        },
        "scatter": calibration.scatter,
        "repeats": calibration.rows.repeats,
        "refusal": calibration.refusal(),
        "rows": [
            row.document() | {"held_out": held, "before_us": before, "after_us": after}
            for row, held, before, after in rows
        ],
        "left_out": [{"place": place, "reason": reason} for place, reason in calibration.rows.defects],
        "far": [{"place": place, "measured_over_predicted": ratio} for place, ratio in calibration.far],
        "sources": [source._asdict() for source in calibration.rows.sources],
    }
