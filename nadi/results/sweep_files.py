"""Files of a sweep of `nadi collective`: a Parquet table of all rows, and a page."""

import json
from pathlib import Path

from nadi import __version__, pages
from nadi.sweeps.sweep import Sweep

TABLE, PAGE = "collective.parquet", "collective.html"
FILES = (TABLE, PAGE)


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write FILES into a folder (see nadi.results.staging.staged), the page only where plotly is installed."""
    folder.mkdir(exist_ok=True)
    _write_table(folder / TABLE, sweep)
    if pages.has_plotly():
        from nadi.pages.sweep import render

        (folder / PAGE).write_text(render(sweep), encoding="utf-8")


def _write_table(path: Path, sweep: Sweep) -> None:
    """A row for each algorithm and size; settings of network and system stand in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [row.algorithm.partition(":") for row in sweep.rows]
    bands = sweep.winners()
    fastest = [
        any(row.algorithm == band.algorithm and band.from_bytes <= row.bytes <= band.to_bytes for band in bands)
        for row in sweep.rows
    ]
    columns = {
        "topology": pa.array([sweep.topology] * len(names), pa.string()),
        "npus": pa.array([sweep.npus] * len(names), pa.int64()),
        "kind": pa.array([row.kind for row in sweep.rows], pa.string()),
        "algorithm": pa.array([name for name, _, _ in names], pa.string()),
        "parameters": pa.array([parameters for _, _, parameters in names], pa.string()),
        "way": pa.array([row.way for row in sweep.rows], pa.string()),
        "bytes": pa.array([row.bytes for row in sweep.rows], pa.int64()),
        "time_ps": pa.array([row.time_ps for row in sweep.rows], pa.int64()),
        "algbw_Bps": pa.array([row.algbw_Bps for row in sweep.rows], pa.float64()),
        "busbw_Bps": pa.array([row.busbw_Bps for row in sweep.rows], pa.float64()),
        "closed_form_ps": pa.array([row.closed_form_ps for row in sweep.rows], pa.float64()),
        "closed_form_played": pa.array([row.closed_form_played for row in sweep.rows], pa.bool_()),
        "ratio": pa.array([row.ratio for row in sweep.rows], pa.float64(), from_pandas=True),
        "bound_ps": pa.array([row.bound_ps for row in sweep.rows], pa.float64()),
        "busiest_link": pa.array([row.busiest_link for row in sweep.rows], pa.float64()),
        "mean_link": pa.array([row.mean_link for row in sweep.rows], pa.float64()),
        "packet_hops": pa.array([row.packet_hops for row in sweep.rows], pa.int64()),
        "digest": pa.array([row.digest for row in sweep.rows], pa.string()),
        "fastest": pa.array(fastest, pa.bool_()),
    }
    settings = {
        "version": __version__,
        "seed": sweep.seed,
        "matrix": sweep.matrix,
        "network": sweep.network.model_dump(mode="json"),
        "system": sweep.system.model_dump(mode="json"),
    }
    pq.write_table(pa.table(columns, metadata={"nadi": json.dumps(settings)}), path)
