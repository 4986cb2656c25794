"""What recorded results of validation become: the page, its pictures, the README's table, and the errors of classes.

The page goes by class of question: errors, then the rows of each group in the class with their status, then sources.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import nccl_tables
from validation_groups import GROUPS, Case, Group, bands_by_class, cases_by_class, class_errors, errors_of

from nadi.validation import STATUSES, ClassErrors

PAGE, README, PICTURES = "docs/explanation/validation.md", "README.md", "docs/images/validation"
ERRORS, BANDS = "nadi/validation/errors.json", "nadi/validation/bands.json"
_TABLE = re.compile(r"(?<=\| class of question \|)[^\n]*\n(\|[^\n]*\n)+")
_INTRODUCTION = """# Validation

This page compares Nadi's predictions with figures that others measured or published. It goes by class of question:
`nadi plan`, `nadi run`, `nadi collective` and their reports name the class of each answer and the errors of that class
below, or say *no measured case* if it is not below. `nadi/validation/classes.toml` declares the classes.

The error is Nadi's value over the published one, less 1. *Mean* and *worst* are those of the absolute errors. Each row
has a status:

- *tuned*: a constant was fitted to it: its error says how well the model describes it, not how well it predicts;
- *predicted first*: the prediction was written down before anybody of the project had read the published value;
- *seen later*: neither: nothing is fitted to it, but it was known when today's code was written.

*First* errors are those of the first predictions, before any constant was fitted to the rows. They say more about
questions that nobody has measured yet than errors of rows that were tuned since.

`python scripts/validation.py` generates this page and runs the quick groups again each time. `--all` also runs the
longer groups, which take 650 s of CPU time in all, two at a time, and continues after an interruption. The date in
[sources](#sources) is that of the last run of each group.
"""
_REST = """
## What is not compared

Classes that are not above have no measured case: among them mixtures of experts on A100 and on GB300, today's FSDP,
dense steps on Blackwell in 16 bits, LoRA, steps shorter than a second, anything on AMD and TPU, serving of mixtures of
experts, over hosts and on Blackwell, NCCL over several racks, other algorithms than NCCL's on GPUs, runs of traces, and
several jobs on a fabric. Further:

- **[Predictions](predictions.md)** that are in no group above: they were written down
  before any measurement was looked up, and have not been compared with measurements yet.
- **Tails of completion times** of real fabrics under congestion: controls are compared with their papers' figures and
  with naive models ([the fabric](fabric.md#tests)), not with counters of real switches.
- **Trends**, if a paper names the best plan but gives no number: [here](studies.md), with what differs
  and why.
"""


def written_files(recorded_by_group: Mapping[str, Any], root: Path) -> dict[Path, str]:
    """Return the text of each file that the recorded results determine.

    Args:
        recorded_by_group: The recorded results by the name of their group.
        root: The folder of the repository.
    """
    cases = cases_by_class(recorded_by_group)
    errors = {name: class_errors(of_class) for name, of_class in cases.items()}
    readme = (root / README).read_text(encoding="utf-8")
    texts = {
        PAGE: page(recorded_by_group, cases, errors),
        README: _TABLE.sub("\n".join(_class_table(errors, PAGE)).removeprefix("| class of question |") + "\n", readme),
        ERRORS: json.dumps({name: asdict(each) for name, each in errors.items()}, indent=1) + "\n",
        BANDS: json.dumps(bands_by_class(cases), indent=1) + "\n",
        **{f"{PICTURES}/{name}.svg": picture for name, picture in plots(recorded_by_group).items()},
    }
    return {root / path: text for path, text in texts.items()}


def anchor(class_name: str) -> str:
    """Return the name of a class in links to its section."""
    return re.sub(r"[^a-z0-9]+", "-", class_name.lower()).strip("-")


def _class_table(errors: Mapping[str, ClassErrors], page_of_links: str = "") -> list[str]:
    """Return the lines of the table of classes, the largest mean error first."""
    lines = [
        f"| class of question | cases | mean | worst | {' | '.join(STATUSES)} | first |",
        f"|{' --- |' * (5 + len(STATUSES))}",
    ]
    for name, each in sorted(errors.items(), key=lambda pair: -pair[1].mean):
        counts = " | ".join(f"{each.statuses[status] or '-'}" for status in STATUSES)
        said = each.first and f"mean {each.first['mean']:.1%}, worst {each.first['worst']:.1%} of {each.first['cases']}"
        link = f"[{name}]({page_of_links}#{anchor(name)})"
        lines.append(f"| {link} | {each.cases:,} | {each.mean:.1%} | {each.worst:.1%} | {counts} | {said or '-'} |")
    return lines


def page(
    recorded_by_group: Mapping[str, Any], cases: Mapping[str, Sequence[Case]], errors: Mapping[str, ClassErrors]
) -> str:
    """Return docs/explanation/validation.md.

    Args:
        recorded_by_group: The recorded results by the name of their group.
        cases: The rows by the name of their class.
        errors: The errors by the name of the class.
    """
    parts = [_INTRODUCTION, *_class_table(errors)]
    for name, of_class in cases.items():
        each = errors[name]
        parts += [f'\n<a id="{anchor(name)}"></a>\n', f"## {name[0].upper()}{name[1:]}\n"]
        parts.append(f"{each.cases:,} cases: mean {each.mean:.1%}, worst {each.worst:.1%}.")
        for group_name, rows in groupby(of_class, lambda case: case.group.name):
            group = next(group for group in GROUPS if group.name == group_name)
            parts += _rows(group, list(rows))
    lead = "What the figures of each group are, what was fitted to them, and the command that reproduces Nadi's values."
    parts += ["\n## Sources\n", lead]
    for group in GROUPS:
        parts += _source(group, recorded_by_group[group.name])
    return "\n".join(parts) + "\n" + _REST


def _rows(group: Group, cases: Sequence[Case]) -> list[str]:
    """Return the lines of a group's rows in a class; groups with first predictions have two more columns."""
    lines = [f"\n[{group.title}](#{group.name})\n"]
    if group.tables:
        for status, rows in groupby(cases, lambda case: case.row["status"]):
            of_status = list(rows)
            size = len(nccl_tables.every_row())
            for first in range(0, len(of_status), size):
                of_table = of_status[first : first + size]
                name = of_table[0].row["what"].partition(" GPUs")[0]
                table = next(each for each in group.tables if name == f"{each.machine}, {each.gpus}")
                values, published = [case.value for case in of_table], [case.row["published"] for case in of_table]
                lines += nccl_tables.lines(table, status, values, published)
        return lines
    first_heading = f" predicted at {group.first_when} | first error |" if group.first_when else ""
    lines.append(f"| | published ({group.unit}) |{first_heading} Nadi ({group.unit}) | error | status |")
    lines.append(f"| --- | --- |{' --- | --- |' if group.first_when else ''} --- | --- | --- |")
    for case in cases:
        first = " - | - |" if group.first_when else ""
        if case.first_error is not None:
            first = f" {_shown(case.row['first'])} | {case.first_error:+.1%} |"
        values = f"{_shown(case.row['published'])} |{first} {_shown(case.value)} | {case.error:+.1%}"
        lines.append(f"| {case.row['what']} | {values} | {case.row['status']} |")
    return lines


def _source(group: Group, recorded: Mapping[str, Any]) -> list[str]:
    """Return the lines about the source of a group."""
    absolute = [abs(error) for error in errors_of(group, recorded["values"])] or [math.nan]
    mean = sum(absolute) / len(absolute)
    return [
        f'\n<a id="{group.name}"></a>\n',
        f"### {group.title}\n",
        f"Published: {group.source}. {group.remark}".rstrip() + "\n",
        f"{len(absolute):,} figures: mean {mean:.1%}, worst {max(absolute):.1%}, run {recorded['date']}.\n",
        f"    {group.command}\n",
        f"![error of each figure](../images/validation/{group.name}.svg)",
    ]


def _shown(value: float) -> str:
    """Return a value with about four digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def plots(recorded_by_group: Mapping[str, Any]) -> dict[str, str]:
    """Return the picture of each group as SVG, by the group's name.

    Args:
        recorded_by_group: The recorded results by the name of their group.
    """
    pictures = {}
    for group in GROUPS:
        published = [row["published"] for row in group.rows]
        errors = errors_of(group, recorded_by_group[group.name]["values"])
        pictures[group.name] = error_plot(published, errors, group.unit)
    return pictures


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 220, 56, 36, 12  # of a plot of errors, in pixels
_FONT, _BAND = ' font-family="sans-serif" font-size="12" fill="#666"', ' fill="#2a9d8f" fill-opacity="0.15"'
_AIM = 0.05  # error that the project wants to stay within, as a band
_SHOWN = 0.98  # fraction of the errors that the vertical axis must hold, so that an outlier does not set it
_SCALES = (0.1, 0.2, 0.5, 1.0, 2.0)  # maximum errors that the vertical axis shows


def error_plot(published: Sequence[float], errors: Sequence[float], unit: str) -> str:
    """Return the SVG text of a plot: a point for each figure, on a logarithmic axis of the published values.

    Args:
        published: Published values in `unit`, above 0.
        errors: Relative error of each prediction; those beyond the axis are drawn at its end.
        unit: Unit of the published values, for the axis.
    """
    most = sorted(map(abs, errors))[int(_SHOWN * (len(errors) - 1))]
    scale = next((limit for limit in _SCALES if most <= limit), _SCALES[-1])
    first = math.floor(math.log10(min(published)))
    decades = max(1, math.ceil(math.log10(max(published))) - first)
    right, low = _WIDTH - 30, _HEIGHT - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - first) / decades * (right - _LEFT)

    def y(error: float) -> float:
        return _TOP + (1 - max(-1.0, min(1.0, error / scale))) / 2 * (low - _TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"{_FONT}>',
        f'<rect x="{_LEFT}" y="{y(_AIM):.1f}" width="{right - _LEFT}" height="{y(-_AIM) - y(_AIM):.1f}"{_BAND}/>',
    ]
    for error in (-scale, -scale / 2, 0.0, scale / 2, scale):
        parts.append(f'<path d="M{_LEFT} {y(error):.1f}H{right}" stroke="#999" stroke-width="0.5"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(error) + 4:.1f}" text-anchor="end">{error:+.0%}</text>')
    for exponent in range(first, first + decades + 1):
        at = x(10.0**exponent)
        parts.append(f'<path d="M{at:.1f} {_TOP}V{low}" stroke="#999" stroke-width="0.5"/>')
        parts.append(f'<text x="{at:.1f}" y="{low + 16}" text-anchor="middle">{10.0**exponent:,g}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 4}">published ({unit}); upwards: error of the prediction</text>')
    parts.extend(
        f'<circle cx="{x(value):.1f}" cy="{y(error):.1f}" r="3" fill="#1d6fb8" fill-opacity="0.7"/>'
        for value, error in zip(published, errors, strict=True)
    )
    return "\n".join([*parts, "</svg>\n"])
