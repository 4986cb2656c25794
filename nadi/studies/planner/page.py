"""HTML page of ranked plans: step time over memory, time and energy breakdown of the best plans, and all plans."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from nadi.inputs.units import GIB
from nadi.reports.pages.charts import bar_chart, empty_figure, series_style
from nadi.reports.pages.page import Page, PageSection, Plot, from_terminal
from nadi.reports.pages.report_times import CATEGORY_COLOURS
from nadi.reports.text.energy import usd_text
from nadi.simulation.schemas import STEP_CATEGORIES
from nadi.studies.planner.report import plan_table
from nadi.terminal import in_page

MAX_BARS = 10  # maximum number of plans in the bar charts
MAX_ROWS = 500  # maximum number of plans in the table of a page
_MEDALS = ("star-open", "diamond-open", "square-open")  # symbols of the fastest plans


def page(answers: Mapping[str, dict[str, Any]]) -> Page:
    """Return the page of plan.json. `answers`: Ranked plans by request: one, or one for each value of `--sweep`."""
    first = next(iter(answers.values()))
    best = max((row for answer in answers.values() for row in answer["rows"]), key=lambda row: row["tokens_per_s"])
    several = f", {len(answers)} requests" if len(answers) > 1 else ""
    title = f"Plans of {first['model']} on {first['cluster']}{several}"
    lead = f"Fastest: {best['axes']}, {best['step_s']:,.4g} s per step, MFU {best['mfu']:.1%}, "
    lead += f"{usd_text(best['cost_usd'])} per step."
    names = {
        name: f"{answer['gpus']:,} {answer['gpu']}" if len(answers) == 1 else name for name, answer in answers.items()
    }
    sections = [
        PageSection(
            "best", "The best plans", "Time and energy of a step by component.", [_times(answers), _energy(answers)]
        ),
        PageSection("memory", "Time and memory", "Every plan that was timed.", [_over_memory(answers, names)]),
        *(_rows(f"plans-{number}", names[name], answer) for number, (name, answer) in zip(count(), answers.items())),
    ]
    return Page(title, lead, sections)


def _bars(answers: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the plans of the bar charts by a unique label: the best few, or the best of each request."""
    maximum = 1 if len(answers) > 1 else MAX_BARS
    chosen: dict[str, dict[str, Any]] = {}
    for name, answer in answers.items():
        for place, row in enumerate(answer["rows"][:maximum], 1):
            recompute = "" if row["recompute"] == "none" else f" {row['recompute']} recompute"
            chosen[f"{name}: {row['axes']}" if maximum == 1 else f"{place}. {row['axes']}{recompute}"] = row
    return chosen


def _times(answers: Mapping[str, dict[str, Any]]) -> Plot:
    """Return the chart of step times by category; answers: documents of ranked plans by request."""
    rows = _bars(answers)
    seconds = {name: [row["shares"][name] * row["step_s"] for row in rows.values()] for name in STEP_CATEGORIES}
    used = {name: values for name, values in seconds.items() if any(values)}
    drawn = bar_chart(list(rows), used, [CATEGORY_COLOURS[name] for name in used], "s")
    text = "; ".join(f"{name} {row['step_s']:,.4g} s" for name, row in list(rows.items())[:3])
    return Plot("step time by category", drawn, f"{text}.", 150 + 34 * len(rows))


def _energy(answers: Mapping[str, dict[str, Any]]) -> Plot:
    """Return the chart of the energy of a step by component; answers: documents of ranked plans by request."""
    rows = _bars(answers)
    parts = dict.fromkeys(part for row in rows.values() for part in row["energy_parts_J"])
    kilojoules = {part: [row["energy_parts_J"].get(part, 0.0) / 1e3 for row in rows.values()] for part in parts}
    drawn = bar_chart(list(rows), kilojoules, [series_style(number).colour for number in range(len(parts))], "kJ")
    text = "; ".join(f"{name} {usd_text(row['cost_usd'])} per step" for name, row in list(rows.items())[:3])
    return Plot("energy of a step by component", drawn, f"{text}.", 150 + 34 * len(rows))


def _over_memory(answers: Mapping[str, dict[str, Any]], request_names: Mapping[str, str]) -> Plot:
    """Return the chart of step time over peak memory, with the fastest plans in the legend; mappings are by request."""
    drawn = empty_figure("peak memory per GPU, GiB", "step time, s")
    for number, (name, answer) in enumerate(answers.items()):
        series = series_style(number)
        drawn.add_scatter(
            x=[row["memory_bytes"] / GIB for row in answer["rows"]],
            y=[row["step_s"] for row in answer["rows"]],
            text=[in_page(f"{row['axes']}, recompute {row['recompute']}") for row in answer["rows"]],
            mode="markers",
            name=in_page(request_names[name]),
            marker={"color": series.colour, "symbol": f"circle{series.mark}", "size": 8},
            hovertemplate="%{text}<br>%{x:.1f} GiB, %{y:,.4g} s<extra></extra>",
        )
        for place, row in enumerate(answer["rows"][: 1 if len(answers) > 1 else len(_MEDALS)]):
            drawn.add_scatter(
                x=[row["memory_bytes"] / GIB],
                y=[row["step_s"]],
                mode="markers",
                name=in_page(f"{place + 1}. {row['axes']}"),
                marker={"color": series.colour, "symbol": _MEDALS[place], "size": 16, "line_width": 2},
                hoverinfo="skip",
            )
    limits = sorted({answer["memory_bytes"] - answer["reserve_bytes"] for answer in answers.values()})
    for limit in limits:
        drawn.add_vline(x=limit / GIB, line_dash="dash", line_color="#808c9b")
    drawn.update_layout(showlegend=True)
    drawn.update_xaxes(rangemode="tozero")
    drawn.update_yaxes(rangemode="normal")
    gib = " and ".join(f"{limit / GIB:.1f}" for limit in limits)
    caption = f"Each point is a plan; the fastest are marked. Dashed lines: memory that plans may use, {gib} GiB. "
    caption += "Plans whose lower bound is longer than the best ones take have no point."
    return Plot("step time over memory", drawn, caption, 480)


def _rows(section_id: str, request_name: str, answer: dict[str, Any]) -> PageSection:
    """Return the section with all plans of a request in the columns of the terminal's table."""
    lead = f"{len(answer['rows']):,} plans, ranked by step time per token."
    if answer["skipped"]:
        lead += f" {answer['skipped']:,} plans were not timed, so ranks after {answer['wanted']} are among these only."
    return PageSection(section_id, f"All plans: {request_name}", lead, [from_terminal(plan_table(answer, MAX_ROWS))])
