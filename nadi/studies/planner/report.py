"""Ranked plans as a table on the terminal, and as a page: step time over memory, time and energy of the best plans."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

from nadi.inputs.units import GIB, PS_PER_S
from nadi.reports.pages import Page, PageSection, Plot, bar_chart, empty_figure, from_terminal, series_style
from nadi.reports.pages.report_times import CATEGORY_COLOURS
from nadi.reports.text.energy import joules_text, usd_text
from nadi.simulation.schemas import STEP_CATEGORIES
from nadi.studies.planner.answer import S_PER_DAY
from nadi.terminal import AnyColumn, FittedTable, in_page, in_unit, name_column, time_unit

_SHOWN = ("tp", "cp", "ep", "etp", "dp", "pp", "embedding", "world", "bubble")
"""Time categories other than computation; each has a column if a plan spends time in it."""
_MIN_SHARE = 0.0005  # minimum share of a step, 0 to 1, for a column: 0.05 % would print as 0.1 %


def plan_table(answer: dict[str, Any], max_plans: int) -> FittedTable:
    """Return the table of the first `max_plans` plans of an answer, the document of one request."""
    rows = answer["rows"][:max_plans]
    shown = [name for name in _SHOWN if any(row["shares"][name] > _MIN_SHARE for row in rows)]
    contended = {"packet step": "packets_step_s", "flow step": "flows_step_s"}
    unit = time_unit(row["step_s"] * PS_PER_S for row in rows)
    num_tokens = answer.get("training", {}).get("tokens", 0.0)

    def time(row: dict[str, Any], key: str) -> str:
        return f"{in_unit(row[key] * PS_PER_S, unit)} {unit.name}" if key in row else "-"

    def share(category: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: f"{row['shares'][category]:.1%}"

    title = f"{answer['model']} on {answer['gpus']} {answer['gpu']} of {answer['cluster']}"
    columns: list[tuple[AnyColumn, Callable[[dict[str, Any]], str]]] = [
        (name_column("plan"), lambda row: row["axes"]),
        (name_column("recompute", 5), lambda row: row["recompute"]),
        ("step time", lambda row: f"{'' if row['whole'] else '~'}{time(row, 'step_s')}"),
        *(((name, 1), partial(time, key=key)) for name, key in contended.items() if any(key in row for row in rows)),
        (("MFU", 1), lambda row: f"{row['mfu']:.1%}"),
        (("MFU all pairs", 4), lambda row: f"{row['mfu_all_pairs']:.1%}"),
        (("tokens/s", 3), lambda row: f"{row['tokens_per_s']:,.0f}"),
        (("memory GiB", 2), lambda row: f"{row['memory_bytes'] / GIB:.1f}"),
        (("energy", 2), lambda row: joules_text(row["energy_J"])),
        (("$/step", 3), lambda row: usd_text(row["cost_usd"])),
        (("GPU-h/10^12 tokens", 2), lambda row: f"{row['gpu_hours_per_trillion_tokens']:,.0f}"),
        (("$/10^12 tokens", 2), lambda row: usd_text(row["usd_per_trillion_tokens"])),
        *([(("days", 1), lambda row: f"{num_tokens / row['tokens_per_s'] / S_PER_DAY:,.4g}")] if num_tokens else []),
        *(((name, 4), share(name)) for name in ("compute", *shown)),
    ]
    table = FittedTable(title, "rank", *(column for column, _ in columns))
    for rank, row in enumerate(rows, 1):
        table.add_row(rank, *(text(row) for _, text in columns), bold=rank == 1)
    table.notes.extend(bar["text"] for bar in answer["error_bars"])
    table.notes.append(
        f"{answer['valid']} valid plans, {answer['too_large']} do not fit in {_memory(answer)}; "
        "step times at closed forms, without contention; exposed communication by axis, mean over the GPUs"
    )
    if answer["skipped"]:
        table.notes.append(
            f"{answer['skipped']} plans skipped: computation, pipeline bubble and collectives of layers alone take "
            f"longer per token than each of the best {answer['wanted']} plans"
        )
    if answer["left"]:
        table.notes.append(f"the search was not finished: {answer['left']} plans are left, which may be better")
    table.notes.append("MFU counts the query-key pairs that a causal mask leaves; MFU all pairs counts all of them")
    if answer["constraints"]:
        table.notes.append(f"every plan has {answer['constraints']}, as in --plan")
    if not all(row["whole"] for row in rows):
        table.notes.append("~: extrapolated from two steps with fewer micro-batches")
    powers = f"{answer['energy_table']} over the default table" if answer["energy_table"] else "the default table"
    table.notes.append(f"energy and cost of a step: powers and prices of {powers}, link bytes derived from the traces")
    best = rows[0]
    if best["network_price_usd"]:
        table.notes.append(
            f"network of the first plan: {usd_text(best['network_price_usd'])} to buy, {usd_text(best['network_usd'])} "
            "per step, within $/step"
        )
    table.notes.extend(answer["notes"])
    if "training" in answer:
        table.notes.append(_training(answer["training"]))
    table.notes.extend(answer["why"])
    return table


def _memory(answer: dict[str, Any]) -> str:
    """Return the memory that plans of an answer may use, as text."""
    capacity, reserve = (answer[key] / GIB for key in ("memory_bytes", "reserve_bytes"))
    return f"{capacity:.1f} GiB minus {reserve:.1f} GiB in reserve" if reserve else f"{capacity:.1f} GiB"


def _training(totals: dict[str, float]) -> str:
    """Return the note about a whole training with the first plan."""
    return (
        f"{totals['tokens']:,.4g} tokens with the first plan: {totals['steps']:,.0f} steps, "
        f"{totals['days']:,.4g} days, {totals['gpu_hours']:,.4g} GPU-hours, "
        f"{joules_text(totals['energy_J'])}, {usd_text(totals['cost_usd'])}; "
        "without checkpoints and failures"
    )


MAX_BARS = 10  # maximum number of plans in the bar charts
MAX_ROWS = 500  # maximum number of plans in the table of a page
_MEDALS = ("star-open", "diamond-open", "square-open")  # symbols of the fastest plans


def plan_page(answers: Mapping[str, dict[str, Any]]) -> Page:
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
            "best",
            "The best plans",
            "Time and energy of a step by component.",
            [_times_plot(answers), _energy_plot(answers)],
        ),
        PageSection("memory", "Time and memory", "Every plan that was timed.", [_over_memory(answers, names)]),
        *(
            _table_section(f"plans-{number}", names[name], answer)
            for number, (name, answer) in zip(count(), answers.items())
        ),
    ]
    return Page(title, lead, sections).with_error_bars(
        bar for answer in answers.values() for bar in answer["error_bars"]
    )


def _bars(answers: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the plans of the bar charts by a unique label: the best few, or the best of each request."""
    maximum = 1 if len(answers) > 1 else MAX_BARS
    chosen: dict[str, dict[str, Any]] = {}
    for name, answer in answers.items():
        for place, row in enumerate(answer["rows"][:maximum], 1):
            recompute = "" if row["recompute"] == "none" else f" {row['recompute']} recompute"
            chosen[f"{name}: {row['axes']}" if maximum == 1 else f"{place}. {row['axes']}{recompute}"] = row
    return chosen


def _times_plot(answers: Mapping[str, dict[str, Any]]) -> Plot:
    """Return the chart of step times by category; answers: documents of ranked plans by request."""
    rows = _bars(answers)
    seconds = {name: [row["shares"][name] * row["step_s"] for row in rows.values()] for name in STEP_CATEGORIES}
    used = {name: values for name, values in seconds.items() if any(values)}
    drawn = bar_chart(list(rows), used, [CATEGORY_COLOURS[name] for name in used], "s")
    text = "; ".join(f"{name} {row['step_s']:,.4g} s" for name, row in list(rows.items())[:3])
    return Plot("step time by category", drawn, f"{text}.", 150 + 34 * len(rows))


def _energy_plot(answers: Mapping[str, dict[str, Any]]) -> Plot:
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


def _table_section(section_id: str, request_name: str, answer: dict[str, Any]) -> PageSection:
    """Return the section with all plans of a request in the columns of the terminal's table."""
    lead = f"{len(answer['rows']):,} plans, ranked by step time per token."
    if answer["skipped"]:
        lead += f" {answer['skipped']:,} plans were not timed, so ranks after {answer['wanted']} are among these only."
    return PageSection(section_id, f"All plans: {request_name}", lead, [from_terminal(plan_table(answer, MAX_ROWS))])
