"""The page of `nadi trace stats`: ranks against collectives, coloured by each member's deviation from the mean."""

from collections.abc import Mapping
from typing import Any

from nadi.inputs.units import PS_PER_US
from nadi.reports.pages import Heading, Page, PageSection, Part, Plot, Plotly, Table, from_terminal, heat_map
from nadi.reports.text.trace import collectives_table
from nadi.terminal import in_page, time_text

_MAX_ROWS = 200


def imbalance_page(title: str, statistics: Mapping[str, Any]) -> Page:
    """Return the page of the result of et.statistics.statistics.

    Args:
        title: Title of the page.
        statistics: Result of et.statistics.statistics.
    """
    lead = f"{statistics['ranks']:,} NPUs with {statistics['nodes']:,} nodes; recorded times: {statistics['times']}."
    colours = "Red: above the mean of the members; blue: below; no colour: not a member."
    maps = [*by_collective(statistics["sizes_by_collective"]), *by_kind(statistics["bytes_by_rank"])]
    table = from_terminal(collectives_table(statistics, _MAX_ROWS), why={"median": "Median size."})
    waiting = [_waiting(statistics["arrivals"])] if statistics["arrivals"] else []
    of_waiting = "Collectives whose members waited longest for the last one."
    sections = [
        PageSection("sizes", "Bytes of each rank", colours, maps),
        PageSection("communication", "Communication", "By kind and group, of all ranks.", [table]),
        PageSection("waiting", "Waiting", of_waiting, waiting),
    ]
    return Page(title, lead, sections)


def by_collective(sizes_by_collective: Mapping[str, Any]) -> list[Part]:
    """Return the chart of ranks against single collectives.

    Args:
        sizes_by_collective: Sizes of the members of each collective, an entry of the statistics.
    """
    if not sizes_by_collective["collectives"]:
        return []
    left_out = sizes_by_collective["collectives_left_out"]
    rest = f" The chart omits {left_out:,} collectives with smaller deviations." if left_out else ""
    rest += (
        f" The chart omits {sizes_by_collective['ranks_left_out']:,} NPUs."
        if sizes_by_collective["ranks_left_out"]
        else ""
    )
    description = f"{sizes_by_collective['uneven']:,} collectives have members with unequal sizes.{rest}"
    names = [in_page(_name(collective)) for collective in sizes_by_collective["collectives"]]
    drawn = _map(list(range(len(names))), names, sizes_by_collective, "collectives in order")
    return [Plot("Bytes of each member of a collective", drawn, description, _height(sizes_by_collective))]


def by_kind(bytes_by_rank: Mapping[str, Any]) -> list[Part]:
    """Return the chart of ranks against kinds of communication.

    Args:
        bytes_by_rank: Bytes of each rank by kind of communication, an entry of the statistics.
    """
    worst = bytes_by_rank["greatest_deviation"]
    if worst is None:
        return []
    description = f"The most uneven is NPU {worst['npu']}: {worst['kind']}, {worst['deviation']:+.1%} of the mean."
    kinds = [in_page(kind) for kind in bytes_by_rank["kinds"]]
    return [
        Plot("Bytes of each rank by kind", _map(kinds, kinds, bytes_by_rank, ""), description, _height(bytes_by_rank))
    ]


def _map(x_positions: list[Any], column_names: list[str], matrix: Mapping[str, Any], x_title: str) -> Plotly:
    """Return a heat map of the deviations; x: positions of the columns, columns: their names in tooltips."""
    sizes = [["-" if size is None else f"{size:,} B" for size in row] for row in matrix["bytes"]]
    drawn = heat_map(
        x_positions,
        [str(npu) for npu in matrix["ranks"]],
        matrix["deviation"],
        x_title,
        "NPU %{y}<br>%{customdata}<br>%{text}<br>%{z:+.2%} of the mean",
        text=sizes,
        customdata=[column_names] * len(sizes),
        colorscale="RdBu_r",
        zmid=0,
        colorbar={"title": "from the mean", "tickformat": "+.0%"},
    )
    drawn.update_yaxes(title_text="NPU")
    return drawn


def _height(matrix: Mapping[str, Any]) -> int:
    return 160 + 14 * max(len(matrix["ranks"]), 6)


def _waiting(arrivals: Mapping[str, Any]) -> Table:
    """Return the table of the collectives with the longest waiting, from the result of `arrivals`."""
    headings = [Heading("collective", is_text=True), Heading("members"), Heading("transfer")]
    headings += [Heading("waiting", "Sum over all members."), Heading("last NPU")]
    rows = []
    for collective in arrivals["most_waiting"]:
        times = [time_text(collective[key] * PS_PER_US) for key in ("transfer_micros", "waiting_micros")]
        rows.append((_name(collective), f"{collective['members']:,}", *times, str(collective["last_npu"])))
    return Table("collectives by waiting", headings, rows)


def _name(collective: Mapping[str, Any]) -> str:
    return f"{collective['kind']} {collective['number']} of {collective['group'] or 'all NPUs'}: {collective['name']}"
