"""What `nadi calibrate` prints: constants, errors before and after, rows that are left out, and the same as JSON."""

from typing import Any

from rich.console import Group

from nadi.studies.calibration.calibrating import Calibration
from nadi.terminal import FittedTable, name_column, text_column


def calibration_tables(calibration: Calibration) -> Group:
    """Return the tables of constants and errors, with notes.

    Args:
        calibration: The fitted constants.
    """
    columns = ("cited", 2), "factor", ("uncertainty", 1), text_column("decided by, or why it stays")
    constants = FittedTable("constants", name_column("constant"), text_column("of", 3), *columns)
    for each in calibration.constants:
        is_fitted = each.factor != 1.0
        factor, uncertainty = (f"{each.factor:g}", f"{each.uncertainty:.1%}") if is_fitted else ("1", "")
        constants.add_row(each.name, each.meaning, each.cited, factor, uncertainty, each.why)
    errors = FittedTable("errors of times", name_column("rows"), "count", "", "mean", ("worst", 1), ("mean, signed", 2))
    for part, held_out in (("fitted", False), ("held out", True)):
        for when, after in (("before", False), ("after", True)):
            found = calibration.errors(after=after, held_out=held_out)
            errors.add_row(part, found.rows, when, f"{found.mean:.1%}", f"{found.worst:.1%}", f"{found.bias:+.1%}")
    errors.notes += _notes(calibration)
    return Group(constants, errors)


def _notes(calibration: Calibration) -> list[str]:
    """Return sentences about the rows."""
    rows = calibration.rows
    repeated = "" if rows.repeats is None else f"; out of place and in place differ by {rows.repeats:.1%} in the mean"
    notes = [
        "held out: every third size of each collective and number of GPUs, from the second",
        f"fitted rows scatter by {calibration.scatter:.1%} around the fit, which no factor removes{repeated}",
        "not fitted: quality of adaptive routing, as closed forms have no contention; `wire` contains its mean effect",
    ]
    notes += [f"left out: {place}: {reason}" for place, reason in rows.defects]
    far = (f"far from the fit: {place}: measured {ratio:.2f} times the prediction" for place, ratio in calibration.far)
    return [*notes, *far]


def calibration_document(calibration: Calibration) -> dict[str, Any]:
    """Return the document that --json prints.

    Args:
        calibration: The fitted constants.
    """
    rows = zip(
        calibration.rows.rows,
        calibration.rows.is_held_out,
        calibration.before_us.tolist(),
        calibration.after_us.tolist(),
        strict=True,
    )
    return {
        "cluster": calibration.cluster,
        "constants": [
            {
                "name": each.name,
                "meaning": each.meaning,
                "cited": each.cited,
                "factor": each.factor,
                "uncertainty": each.uncertainty,
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
            row._asdict() | {"held_out": held, "before_us": before, "after_us": after}
            for row, held, before, after in rows
        ],
        "left_out": [{"place": place, "reason": reason} for place, reason in calibration.rows.defects],
        "far": [{"place": place, "measured_over_predicted": ratio} for place, ratio in calibration.far],
        "sources": [source._asdict() for source in calibration.rows.sources],
    }
