"""`nadi trace reduce`: remove nodes and dependencies that do not affect the simulated time."""

import typer

from nadi.cli.options import AsJson, Traces, TracesOut
from nadi.cli.output import print_json, print_table
from nadi.launching.ending import unwound

_WITHOUT_HOST = "Drop all host operators regardless of their time, which changes the simulated time."


def reduce_(
    path: Traces,
    out: TracesOut,
    without_host: bool = typer.Option(False, "--without-host", help=_WITHOUT_HOST),
    as_json: AsJson = False,
) -> None:
    """Drop nodes without duration, fuse chains of host operators, drop implied dependencies; simulated time stays."""
    import shutil

    from nadi.et.reshape import companions, find_files, reduce_trace
    from nadi.reports.text.trace import render_reduced
    from nadi.workload.trace_sets import staged_traces, with_node_counts

    files, beside = find_files(path), companions(path)
    names = [file.path.name for file in files] + sorted((file.name for file in beside), key="traces.json".__eq__)
    found = {}
    with unwound(), staged_traces(out, names, "these traces") as staging:
        for file in files:
            name = file.path.name
            found[name] = reduce_trace(file.path, staging / name, npu=file.npu, without_host=without_host)
        for other in beside:
            shutil.copyfile(other, staging / other.name)
        with_node_counts(staging, {name: result.kept for name, result in found.items()})
    if as_json:
        print_json({name: result._asdict() for name, result in found.items()})
    else:
        print_table(render_reduced(str(out), found))
