"""Result files of `nadi collective`: a Parquet table of all rows, and an HTML page."""

import json
from pathlib import Path

from nadi import __version__
from nadi.reports import pages
from nadi.simulation import schemas
from nadi.studies.collectives.microbench import SweepRow
from nadi.studies.collectives.sweep import CollectiveSweep

PAGE = "collective.html"
FILES = (schemas.SWEEP.file, PAGE)


def write_sweep(folder: Path, sweep: CollectiveSweep) -> None:
    """Write FILES into a folder (see nadi.reports.result_files.staging), the page only if plotly is installed."""
    folder.mkdir(exist_ok=True)
    _write_table(folder / schemas.SWEEP.file, sweep)
    if pages.has_plotly():
        from nadi.studies.collectives.page import render

        (folder / PAGE).write_text(render(sweep), encoding="utf-8")


def _write_table(path: Path, sweep: CollectiveSweep) -> None:
    """Write one row per algorithm and size; the file's metadata hold the settings of network and system."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [row.algorithm.partition(":") for row in sweep.rows]
    bands = sweep.winners()
    fastest = [
        any(row.algorithm == band.algorithm and band.from_bytes <= row.bytes <= band.to_bytes for band in bands)
        for row in sweep.rows
    ]
    columns = {
        "topology": [sweep.topology] * len(names),
        "npus": [sweep.npus] * len(names),
        **{name: [getattr(row, name) for row in sweep.rows] for name in SweepRow._fields},
        "algorithm": [name for name, _, _ in names],
        "parameters": [parameters for _, _, parameters in names],
        "ratio": pa.array([row.ratio for row in sweep.rows], pa.float64(), from_pandas=True),
        "fastest": fastest,
    }
    settings = {
        "version": __version__,
        "seed": sweep.seed,
        "matrix": sweep.matrix,
        "network": sweep.network.model_dump(mode="json"),
        "system": sweep.system.model_dump(mode="json"),
    }
    pq.write_table(schemas.SWEEP.table(columns, {"nadi": json.dumps(settings)}), path)
