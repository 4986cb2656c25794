"""Result files of a sweep: one Parquet table, and an HTML page if plotly is installed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import inputs
from nadi.errors import OutputError
from nadi.insight.runs.figures import ranking_figure
from nadi.reports.pages import has_plotly
from nadi.studies.sweeps.points import SweepDefinition
from nadi.studies.sweeps.running import PointOutcome
from nadi.studies.sweeps.table import FILE, table

if TYPE_CHECKING:
    import pyarrow as pa

PAGE = "sweep.html"


def finish(sweep: SweepDefinition, out: Path, outcomes: Sequence[PointOutcome]) -> "pa.Table":
    """Write sweep.parquet and sweep.html, and return the table.

    Raises:
        OutputError: A file cannot be written.
    """
    import pyarrow.parquet as pq

    result = table(sweep, out, outcomes)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with inputs.whole_file(out / FILE) as file:
            pq.write_table(result, file)
    except OSError as error:
        raise OutputError(f"{out}: {error.strerror or error}; expected a folder to write the table to") from None
    if has_plotly():
        from nadi.reports.pages.page import write_page
        from nadi.studies.sweeps.page import page

        write_page(out / PAGE, page(result, f"Sweep {sweep.path.stem}", out, ranking_figure(result, sweep.rank)))
    return result
