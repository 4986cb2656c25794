"""`nadi trace convert`: convert traces between formats."""

from pathlib import Path

import typer

from nadi.cli.options import Prefix, named_path
from nadi.cli.output import print_document
from nadi.launching.ending import unwound

# Typical size of a node in a Chakra trace in bytes; a computation without attributes has 40, a collective 90
_NODE_BYTES = 60
_CHAKRA = "chakra"  # name of the format of trace sets
_SOURCE = "Format of INPUT if ambiguous, optionally with FORMAT:option=value,..."


def convert(
    sources: list[Path] = typer.Argument(metavar="INPUT...", help="Files or a folder of one format, or a trace set."),
    out: Path = typer.Option(..., "-o", "--out", metavar="DIR", parser=named_path, help="Folder for the results."),
    source: str = typer.Option("", "--from", metavar="FORMAT", help=_SOURCE),
    target: str = typer.Option(_CHAKRA, "--to", metavar="FORMAT", help="Format of the results."),
    prefix: Prefix = "trace",
    as_json: bool = typer.Option(False, "--json", help="Print inputs, results and losses as JSON."),
) -> None:
    """Convert traces of PyTorch, ASTRA-sim, SimAI or GOAL to Chakra traces, and Chakra traces to JSON or GOAL."""
    from nadi.et import advising
    from nadi.et.formats import chakra, chosen, format_of
    from nadi.reports.text.trace import render_converted
    from nadi.workload import read_set
    from nadi.workload.trace_sets import check_prefix, expanded_tables, is_set, staged_traces

    check_prefix(prefix)
    target, writer, to_options = chosen(target, "write", "--to")
    of_set = len(sources) == 1 and is_set(sources[0])
    source = source or (_CHAKRA if of_set else format_of(sources[0]))
    source, reader, from_options = chosen(source, "read", "--from")
    with unwound():
        if of_set and source == _CHAKRA:
            strict = chakra.is_strict(from_options)
            with advising(chakra.NOT_STRICT_OPTION):
                traces = expanded_tables(read_set(sources[0], strict=strict, keep_others=True))
        else:
            traces = reader.read(sources, from_options)
        names = writer.names(traces, prefix)
        with staged_traces(out, names, "these traces", traces.nodes_each * _NODE_BYTES) as staging:
            writer.write(traces, staging, prefix, to_options)
    result = {"from": source, "to": target, "folder": str(out), "files": names, "npus": len(traces.tables)}
    result |= {"groups": len(traces.groups), "notes": list(traces.notes), "report": dict(traces.report)}
    print_document(result, render_converted, as_json=as_json)
