"""`nadi trace timeline`: write a timeline of Chakra traces for the Perfetto UI."""

from nadi.cli.options import AsJson, MaxSlices, Timeline, Traces
from nadi.cli.output import print_timeline
from nadi.launching.ending import unwound


def timeline(path: Traces, out: Timeline, most_slices: MaxSlices = 200_000, as_json: AsJson = False) -> None:
    """Write a timeline: lanes by NPU and kind, arrows from sends to receives; times recorded or by dependencies."""
    from nadi.reports.trace_timeline import write_trace_timeline
    from nadi.workload.trace_sets import read_ranks

    with unwound():
        shown = write_trace_timeline(out, read_ranks(path), most_slices)
    print_timeline(out, shown, as_json=as_json)
