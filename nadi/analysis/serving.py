"""Requests in figures: time to the first token, time per output token, and tokens per second.

Traces of `nadi workload inference` name when a request comes (`arrivals/request3`) and when it has its first and its
last token (`iteration12/decode/request3/token128`), by nodes that end then.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from et import ComposedNames, NameTable, TraceTable
from nadi.analysis.node_times import row_blocks
from nadi.terminal.readable import time_text
from pdes import Results
from workload import Program

Int32 = NDArray[np.int32]

PS_PER_S = 1e12
_WORD = rb"request[0-9]"
_ARRIVAL = re.compile(r"arrivals/request([0-9]{1,9})")
_TOKEN = re.compile(r"iteration[0-9]+/[a-z]+/request([0-9]{1,9})/token([0-9]{1,9})")


@dataclass
class Requests:
    """When requests came, and when they had how many tokens: picoseconds by request and number of tokens, 0 = came."""

    times_ps: dict[int, dict[int, int]] = field(default_factory=dict)

    def note(self, request: int, tokens: int, at_ps: int) -> None:
        """Of several GPUs that have a token the last one counts."""
        own = self.times_ps.setdefault(request, {})
        own[tokens] = max(own.get(tokens, 0), at_ps)


@dataclass(frozen=True)
class Figures:
    """Of all requests that had a token.

    Attributes:
        requests: how many.
        tokens: that were made.
        ttft_ps: float64[requests], from when it came to its first token.
        tpot_ps: float64[those with more than one token], mean time of a token after the first.
        span_ps: from when the first request came to the last token.
    """

    requests: int
    tokens: int
    ttft_ps: NDArray[np.float64]
    tpot_ps: NDArray[np.float64]
    span_ps: int

    @property
    def tokens_per_s(self) -> float:
        """That were made, over the whole span."""
        return self.tokens / max(self.span_ps, 1) * PS_PER_S


def requests_of(
    program: Program, traces: Sequence[TraceTable], trace_of_npu: Int32, results: Results
) -> Requests | None:
    """What the traces of this rank's NPUs say; None = no request.

    Args:
        program: what ran.
        traces: distinct trace files.
        trace_of_npu: int32[npus], which of them an NPU runs, below 0 = none.
        results: when the nodes ran.
    """
    named = [_named(trace) for trace in traces]
    if not any(named):
        return None
    found = Requests()
    for rows in row_blocks(program, results.npu_node_ptr):
        finish_ps = results.node_finish_ps[rows.result]
        npus, firsts = np.unique(rows.npu, return_index=True)
        for npu, first in zip(npus.tolist(), firsts.tolist(), strict=True):
            for row, (request, tokens) in named[trace_of_npu[npu]].items():
                found.note(request, tokens, int(finish_ps[first + row]))
    return found


def _named(trace: TraceTable) -> Mapping[int, tuple[int, int]]:
    """Rows of a trace that tell of a request: which, and how many tokens it has then."""
    made: dict[int, tuple[int, int]] = {}
    for row in _rows_with_requests(trace.names).tolist():
        name = trace.names[row]
        arrival, token = _ARRIVAL.fullmatch(name), _TOKEN.fullmatch(name)
        if arrival is not None:
            made[row] = int(arrival[1]), 0
        elif token is not None:
            made[row] = int(token[1]), int(token[2])
    return made


def _rows_with_requests(names: NameTable | ComposedNames) -> NDArray[np.int64]:
    """int64[]: rows whose names have the word, found without putting all names together."""
    if isinstance(names, ComposedNames):
        heads, tails = (np.isin(rows, _rows_with_requests(table)) for rows, table in (
            (names.head, names.heads), (names.tail, names.tails)
        ))  # fmt: skip
        return np.flatnonzero(heads | tails)
    places = np.array([at.start() for at in re.finditer(_WORD, names.blob.data)], np.int64)
    rows = np.unique(np.searchsorted(names.offsets, places, "right") - 1)
    return rows[(rows >= 0) & (rows < len(names))]


def figures(parts: Iterable[Requests | None]) -> Figures | None:
    """Of what all ranks have seen; None = no request has a token."""
    all_parts = Requests()
    for part in parts:
        for request, own in (part.times_ps if part else {}).items():
            for tokens, at_ps in own.items():
                all_parts.note(request, tokens, at_ps)
    done = [own for _, own in sorted(all_parts.times_ps.items()) if 0 in own and 1 in own]
    if not done:
        return None
    longer = [own for own in done if max(own) > 1]
    return Figures(
        requests=len(done),
        tokens=sum(max(own) for own in done),
        ttft_ps=np.array([own[1] - own[0] for own in done], np.float64),
        tpot_ps=np.array([(own[max(own)] - own[1]) / (max(own) - 1) for own in longer], np.float64),
        span_ps=max(own[max(own)] for own in done) - min(own[0] for own in done),
    )


def document(found: Figures) -> dict[str, Any]:
    """What summary.json says."""
    made: dict[str, Any] = {"requests": found.requests, "tokens": found.tokens, "tokens_per_s": found.tokens_per_s}
    for name, times_ps in (("ttft", found.ttft_ps), ("tpot", found.tpot_ps)):
        if len(times_ps):
            made[f"{name}_median_ps"] = float(np.median(times_ps))
            made[f"{name}_p99_ps"] = float(np.percentile(times_ps, 99))
    return made


def serving_line(found: Figures) -> str:
    """What the terminal says."""
    said = [f"{found.requests:,} requests"]
    for name, times_ps in (("TTFT", found.ttft_ps), ("TPOT", found.tpot_ps)):
        if len(times_ps):
            median_ps, p99_ps = float(np.median(times_ps)), float(np.percentile(times_ps, 99))
            said.append(f"{name} {time_text(round(median_ps))} (p99 {time_text(round(p99_ps))})")
    return ", ".join([*said, f"{found.tokens_per_s:,.0f} tokens/s"])
