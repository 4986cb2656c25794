"""What Nadi has decided about a run when its engine starts: settings, fabric, work, parts, workers and expected cost.

Only this module of the records knows where the product holds these decisions. When that place moves, `resolved`
follows, and what is recorded stays the same.
"""

import contextlib
import io
from unittest import mock

import numpy as np

from nadi import pdes
from nadi.simulation import run as simulation
from nadi.simulation.closed_forms import running
from tests.records.plain import plain


def resolved(begin):
    """Return exit code, output and decisions of a run, which ends where its engine would start.

    Args:
        begin: Function without arguments that begins the run; it may return an exit code.
    """
    decided = {}

    def packets(graph, program, settings, _progress, workers, owner, expected, _checkpoints=None):
        parts = {"nodes": [graph.nodes] if owner is None else plain(np.bincount(owner)), "owner": plain(owner)}
        if settings.fidelity.model.has_packets:
            parts["window_ps"] = pdes.parallel.Layout(graph, settings, owner).lookahead_ps
        of_workers = {name: value for name, value in plain(workers).items() if name != "ranks"}
        decided.update(common(graph, program, settings), workers=of_workers, parts=parts, cost=plain(expected))
        raise SystemExit(0)

    def closed_forms(graph, folded, _costed, _costs, settings, _progress):
        decided.update(common(graph, folded.program, settings), rows_of_classes=int(folded.row_ptr[-1]))
        raise SystemExit(0)

    out, err, code = io.StringIO(), io.StringIO(), 0
    replaced = mock.patch.object(simulation, "run_program", packets), mock.patch.object(running, "run", closed_forms)
    with replaced[0], replaced[1], contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = begin()
        except SystemExit as end:
            code = end.code
    return {"exit": code, "printed": (out.getvalue() + err.getvalue()).splitlines()} | decided


def common(graph, program, settings):
    """Return settings other than the defaults, and sizes and sums of the fabric and of the work of all NPUs."""
    runs = program.trace_of_npu[program.trace_of_npu >= 0]
    npus_of_row = np.repeat(np.bincount(runs, minlength=len(program.trace_ptr) - 1), np.diff(program.trace_ptr))
    sums = {
        name: int((getattr(program, f"node_{name}") * npus_of_row).sum()) for name in ("duration_ps", "bytes", "deps")
    }
    of_settings = plain(settings, pdes.Settings())
    if "faults" in of_settings:  # of the routings only the links that each does without
        of_settings["faults"]["routings"] = sorted(sorted(map(int, links)) for links in settings.faults.routings)
    return {
        "settings": of_settings,
        "fabric": {
            "npus": graph.npus,
            "nodes": graph.nodes,
            "links": graph.links,
            "rate_bps": int(graph.link_rate_bps.sum()),
            "delay_ps": int(graph.link_delay_ps.sum()),
        },
        "work": sums
        | {
            "rows": int(npus_of_row.sum()),
            "rows_by_kind": plain(np.bincount(program.node_kind, weights=npus_of_row).astype(int)),
            "traces": len(program.trace_ptr) - 1,
            "groups": len(program.group_ptr) - 1,
            "schedules": np.unique(program.node_schedule[program.node_schedule >= 0]).size,
            "begins_ps": plain(np.unique(program.begins_ps)),
        },
    }
