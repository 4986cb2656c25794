"""The page of `nadi trace stats`: ranks against collectives, coloured by each member's deviation from the mean."""

from collections.abc import Mapping
from typing import Any

from inputs.units import PS_PER_US
from nadi.reports.pages.page import Heading, Page, PageSection, Part, Plot, Table
from nadi.terminal.printing import in_page
from nadi.terminal.readable import amount_text, time_text

_COLOURS = "RdBu_r"
_MAX_ROWS = 200


def page(title: str, found: Mapping[str, Any]) -> Page:
    """Return the page of the result of et.statistics.statistics.

    Args:
        title: Title of the page.
        found: Result of et.statistics.statistics.
    """
    lead = f"{found['ranks']:,} NPUs with {found['nodes']:,} nodes; recorded times: {found['times']}."
    sizes = PageSection(
        "sizes",
        "Bytes of each rank",
        "Red: above the mean of the members; blue: below; no colour: not a member.",
        [*by_collective(found["sizes_by_collective"]), *by_kind(found["bytes_by_rank"])],
    )
    mix = PageSection(
        "communication", "Communication", "By kind and group, of all ranks.", [_mix(found["collectives"])]
    )
    parts: list[Part] = [_waiting(found["arrivals"])] if found["arrivals"] else []
    waiting = PageSection("waiting", "Waiting", "Collectives whose members waited longest for the last one.", parts)
    return Page(title, lead, [sizes, mix, waiting])


def by_collective(matrix: Mapping[str, Any]) -> list[Part]:
    """Return the chart of ranks against single collectives."""
    if not matrix["collectives"]:
        return []
    left_out = matrix["collectives_left_out"]
    rest = f" The chart omits {left_out:,} collectives with smaller deviations." if left_out else ""
    rest += f" The chart omits {matrix['ranks_left_out']:,} NPUs." if matrix["ranks_left_out"] else ""
    description = f"{matrix['uneven']:,} collectives have members with unequal sizes.{rest}"
    drawn = _map([_label(label) for label in matrix["collectives"]], matrix, numbered=True)
    drawn.update_xaxes(title_text="collectives in order")
    return [Plot("Bytes of each member of a collective", drawn, description, _height(matrix))]


def by_kind(matrix: Mapping[str, Any]) -> list[Part]:
    """Return the chart of ranks against kinds of communication."""
    worst = matrix["greatest_deviation"]
    if worst is None:
        return []
    description = f"The most uneven is NPU {worst['npu']}: {worst['kind']}, {worst['deviation']:+.1%} of the mean."
    drawn = _map([in_page(kind) for kind in matrix["kinds"]], matrix, numbered=False)
    return [Plot("Bytes of each rank by kind", drawn, description, _height(matrix))]


def _map(columns: list[str], matrix: Mapping[str, Any], *, numbered: bool) -> Any:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects as go

    shown = [["-" if size is None else f"{size:,} B" for size in row] for row in matrix["bytes"]]
    heat = go.Heatmap(
        x=list(range(len(columns))) if numbered else columns,
        y=[str(npu) for npu in matrix["ranks"]],
        z=matrix["deviation"],
        text=shown,
        customdata=[columns] * len(shown),
        colorscale=_COLOURS,
        zmid=0,
        colorbar={"title": "from the mean", "tickformat": "+.0%"},
        hovertemplate="NPU %{y}<br>%{customdata}<br>%{text}<br>%{z:+.2%} of the mean<extra></extra>",
    )
    drawn: Any = go.Figure(heat)
    drawn.update_layout(margin={"t": 10, "b": 50, "l": 10, "r": 10})
    drawn.update_yaxes(title_text="NPU", type="category", autorange="reversed")
    return drawn


def _height(matrix: Mapping[str, Any]) -> int:
    return 160 + 14 * max(len(matrix["ranks"]), 6)


def _mix(rows: list[dict[str, Any]]) -> Table:
    headings = [Heading("kind", is_text=True), Heading("group", is_text=True), *map(Heading, ("count", "bytes"))]
    headings += [Heading("minimum"), Heading("median", "Median size."), Heading("maximum")]
    cells = [
        (row["kind"], row["group"] or "-", f"{row['count']:,}", amount_text(row["bytes"]), *_sizes(row))
        for row in rows[:_MAX_ROWS]
    ]
    left_out = len(rows) - len(cells)
    return Table("communication", headings, cells, f"and {left_out:,} more" if left_out else "")


def _waiting(found: Mapping[str, Any]) -> Table:
    headings = [Heading("collective", is_text=True), Heading("members"), Heading("transfer")]
    headings += [Heading("waiting", "Sum over all members."), Heading("last NPU")]
    rows = []
    for collective in found["most_waiting"]:
        times = [time_text(collective[key] * PS_PER_US) for key in ("transfer_micros", "waiting_micros")]
        rows.append((_name(collective), f"{collective['members']:,}", *times, str(collective["last_npu"])))
    return Table("collectives by waiting", headings, rows)


def _sizes(row: Mapping[str, Any]) -> list[str]:
    return [amount_text(row[key]) for key in ("least_bytes", "median_bytes", "most_bytes")]


def _label(collective: Mapping[str, Any]) -> str:
    return in_page(_name(collective))


def _name(collective: Mapping[str, Any]) -> str:
    return f"{collective['kind']} {collective['number']} of {collective['group'] or 'all NPUs'}: {collective['name']}"
