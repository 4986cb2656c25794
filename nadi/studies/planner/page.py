"""The page of ranked plans: step time over memory, where time and energy of the best plans go, and all plans."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from inputs.units import GIB
from nadi.insight.analysis.step_times import CATEGORIES
from nadi.reports.pages.page import Heading, Page, PageSection, Paragraph, Part, Plot, Table
from nadi.reports.pages.report.step import COLOURS
from nadi.reports.pages.series import style
from nadi.reports.text.energy import usd_text
from nadi.studies.planner.report import plan_table
from nadi.terminal.printing import in_page

MOST_BARS = 10
"""Plans whose parts are drawn."""
MOST_ROWS = 500


def page(answers: Mapping[str, dict[str, Any]]) -> Page:
    """Return the page of plan.json.

    Args:
        answers: Ranked plans by request: one, or one for each value of `--sweep`.
    """
    first = next(iter(answers.values()))
    best = min((row for found in answers.values() for row in found["rows"]), key=lambda row: row["step_s"])
    several = f", {len(answers)} requests" if len(answers) > 1 else ""
    title = f"Plans of {first['model']} on {first['cluster']}{several}"
    lead = f"Fastest: {best['axes']}, {best['step_s']:,.4g} s a step, MFU {best['mfu']:.1%}, "
    lead += f"{usd_text(best['cost_usd'])} a step."
    names = {
        name: f"{found['gpus']:,} {found['gpu']}" if len(answers) == 1 else name for name, found in answers.items()
    }
    sections = [
        PageSection(
            "best",
            "The best plans",
            "Where the time and the energy of a step go.",
            [*_times(answers), *_energy(answers)],
        ),
        PageSection("memory", "Time and memory", "Every plan that fits.", [_over_memory(answers, names)]),
        *(_rows(f"plans-{number}", names[name], found) for number, (name, found) in zip(count(), answers.items())),
    ]
    return Page(title, lead, sections)


def _bars(answers: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the plans that are drawn, by a label that is theirs alone: the best few, or the best of each request."""
    most = 1 if len(answers) > 1 else MOST_BARS
    found: dict[str, dict[str, Any]] = {}
    for name, answer in answers.items():
        for place, row in enumerate(answer["rows"][:most], 1):
            recompute = "" if row["recompute"] == "none" else f" {row['recompute']} recompute"
            found[f"{name}: {row['axes']}" if most == 1 else f"{place}. {row['axes']}{recompute}"] = row
    return found


def _times(answers: Mapping[str, dict[str, Any]]) -> list[Part]:
    from plotly import graph_objects as go

    bars, drawn = _bars(answers), go.Figure()
    for category in CATEGORIES:
        seconds = [row["shares"][category] * row["step_s"] for row in bars.values()]
        if any(seconds):
            marker = {"color": COLOURS[category]}
            drawn.add_bar(y=[in_page(name) for name in bars], x=seconds, name=category, orientation="h", marker=marker)
    _as_bars(drawn, "step, s")
    text = "; ".join(f"{name} {row['step_s']:,.4g} s" for name, row in list(bars.items())[:3])
    return [Plot("time of a step by what it is spent on", drawn, f"{text}.", 150 + 34 * len(bars))]


def _energy(answers: Mapping[str, dict[str, Any]]) -> list[Part]:
    from plotly import graph_objects as go

    bars, drawn = _bars(answers), go.Figure()
    for number, part in enumerate(dict.fromkeys(part for row in bars.values() for part in row["energy_parts_J"])):
        kilojoules = [row["energy_parts_J"].get(part, 0.0) / 1e3 for row in bars.values()]
        marker = {"color": style(number).colour}
        drawn.add_bar(
            y=[in_page(name) for name in bars], x=kilojoules, name=in_page(part), orientation="h", marker=marker
        )
    _as_bars(drawn, "energy of a step, kJ")
    text = "; ".join(f"{name} {usd_text(row['cost_usd'])} a step" for name, row in list(bars.items())[:3])
    return [Plot("energy of a step by part", drawn, f"{text}.", 150 + 34 * len(bars))]


def _as_bars(drawn: Any, axis: str) -> None:  # noqa: ANN401 - plotly has no types
    drawn.update_layout(barmode="stack", margin={"t": 10, "b": 50, "l": 10, "r": 10}, legend={"traceorder": "normal"})
    drawn.update_xaxes(title_text=axis)
    drawn.update_yaxes(autorange="reversed")


def _over_memory(answers: Mapping[str, dict[str, Any]], names: Mapping[str, str]) -> Plot:
    from plotly import graph_objects as go

    drawn = go.Figure()
    for number, (name, found) in enumerate(answers.items()):
        look = style(number)
        drawn.add_scatter(
            x=[row["memory_bytes"] / GIB for row in found["rows"]],
            y=[row["step_s"] for row in found["rows"]],
            text=[in_page(f"{row['axes']}, recompute {row['recompute']}") for row in found["rows"]],
            mode="markers",
            name=in_page(names[name]),
            marker={"color": look.colour, "symbol": f"circle{look.mark}", "size": 8},
            hovertemplate="%{text}<br>%{x:.1f} GiB, %{y:,.4g} s<extra></extra>",
        )
        for place, row in enumerate(found["rows"][: 1 if len(answers) > 1 else 3], 1):
            label = {
                "text": in_page(f"{place}. {row['axes']}"),
                "showarrow": True,
                "arrowhead": 0,
                "ax": 40,
                "ay": -25 * place,
            }
            drawn.add_annotation(x=row["memory_bytes"] / GIB, y=row["step_s"], **label)
    for limit in sorted({found["memory_bytes"] - found["reserve_bytes"] for found in answers.values()}):
        drawn.add_vline(x=limit / GIB, line_dash="dash", annotation_text="memory for plans")
    drawn.update_layout(margin={"t": 30, "b": 50, "l": 10, "r": 10})
    drawn.update_xaxes(title_text="memory of the fullest GPU, GiB", rangemode="tozero")
    drawn.update_yaxes(title_text="step, s", rangemode="tozero")
    says = "A point is a plan; the fastest ones have their names. Right of the dashed line nothing fits."
    return Plot("step time over memory", drawn, says, 480)


def _rows(place: str, name: str, found: dict[str, Any]) -> PageSection:
    """Return all plans of a request as the terminal's table has them."""
    table = plan_table(found, MOST_ROWS)
    headings = [Heading(column.heading or "rank", is_text=column.form != "number") for column in table.columns]
    parts: list[Part] = [Table(f"ranked plans: {name}", headings, table.rows)]
    parts += [Paragraph(note[:1].upper() + note[1:]) for note in table.notes]
    return PageSection(
        place, f"All plans: {name}", f"{len(found['rows']):,} plans, ranked by the time of a step.", parts
    )
