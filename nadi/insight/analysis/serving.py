"""Serving metrics: time to first token (TTFT), time per output token (TPOT), and tokens per second."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.et import TraceTable
from nadi.et.statistics import values_needed
from nadi.inputs.arrays import Int32
from nadi.inputs.units import PS_PER_S
from nadi.insight.analysis.node_times import row_blocks
from nadi.pdes import Results
from nadi.workload import Program
from nadi.workload.generators.inference import requests_in

PERCENTILES = (50, 90, 95, 99)  # percentiles of TTFT and TPOT that tables show
QUANTILES = 101  # points of a cumulative distribution: each percent


@dataclass
class Requests:
    """Arrival and token times: picoseconds by request and number of output tokens, with 0 tokens for the arrival."""

    times_ps: dict[int, dict[int, int]] = field(default_factory=dict)

    def note(self, request: int, token_index: int, at_ps: int) -> None:
        """Record a time; if several GPUs produce a token, the last one counts.

        Args:
            request: Number of the request.
            token_index: Index of the token; 0 = the arrival of the request.
            at_ps: Time in ps.
        """
        own = self.times_ps.setdefault(request, {})
        own[token_index] = max(own.get(token_index, 0), at_ps)


@dataclass(frozen=True)
class Figures:
    """Metrics over all requests with at least one token."""

    requests: int  # number of requests
    tokens: int  # number of output tokens
    ttft_ps: NDArray[np.float64]  # float64[requests], time from a request's arrival to its first token
    tpot_ps: NDArray[np.float64]  # float64[requests with several tokens], mean time per token after the first
    span_ps: int  # time from the first arrival to the last token

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second over the whole span."""
        return self.tokens / max(self.span_ps, 1) * PS_PER_S


def requests_of(
    program: Program, traces: Sequence[TraceTable], trace_of_npu: Int32, results: Results
) -> Requests | None:
    """Return arrival and token times of requests in traces; None without requests.

    Args:
        program: Work of all NPUs (`Program`).
        traces: The distinct traces.
        trace_of_npu: int32[npus], index of each NPU's trace, below 0 = none.
        results: Results of the engine.
    """
    named = [{row: request for row, *request in requests_in(trace)} for trace in traces]
    if not any(named):
        return None
    requests = Requests()
    for rows in row_blocks(program, results.npu_node_ptr):
        finish_ps = results.node_finish_ps[rows.result]
        # rows of an NPU are consecutive, so the first gives the place of all
        npus, firsts = np.unique(rows.npu, return_index=True)
        for npu, first in zip(npus.tolist(), firsts.tolist(), strict=True):
            for row, (request, tokens) in named[trace_of_npu[npu]].items():
                at_ps = int(finish_ps[first + row])
                if results.snapshot_ps is None or at_ps < results.snapshot_ps:  # else the token is not there yet
                    requests.note(request, tokens, at_ps)
    return requests


def figures(parts: Iterable[Requests | None]) -> Figures | None:
    """Return the metrics over the requests of all ranks; None if no request has a token.

    Args:
        parts: Requests of each rank; None = a rank without requests.
    """
    all_parts = Requests()
    for part in parts:
        for request, own in (part.times_ps if part else {}).items():
            for tokens, at_ps in own.items():
                all_parts.note(request, tokens, at_ps)
    # only requests that have both arrived and got a token
    done = [own for _, own in sorted(all_parts.times_ps.items()) if 0 in own and 1 in own]
    if not done:
        return None
    # a single token has no time per further token
    longer = [own for own in done if max(own) > 1]
    return Figures(
        requests=len(done),
        tokens=sum(max(own) for own in done),
        ttft_ps=np.array([own[1] - own[0] for own in done], np.float64),
        tpot_ps=np.array([(own[max(own)] - own[1]) / (max(own) - 1) for own in longer], np.float64),
        span_ps=max(own[max(own)] for own in done) - min(own[0] for own in done),
    )


def document(found: Figures) -> dict[str, Any]:
    """Return what summary.json holds: counts, tokens per second, and for TTFT and TPOT mean, percentiles and quantiles.

    `ttft` and `tpot` hold `mean_ps`, `p50_ps` to `p99_ps`, None with too few requests, and `quantiles_ps`, the times of
    0 %, 1 % ... 100 % of the requests. A request with one token has no TPOT.

    Args:
        found: Metrics of the requests.
    """
    made: dict[str, Any] = {"requests": found.requests, "tokens": found.tokens, "tokens_per_s": found.tokens_per_s}
    for name, times_ps in (("ttft", found.ttft_ps), ("tpot", found.tpot_ps)):
        if len(times_ps):
            percentiles = {
                f"p{p}_ps": float(np.percentile(times_ps, p)) if len(times_ps) >= values_needed(p) else None
                for p in PERCENTILES
            }
            quantiles = np.quantile(times_ps, np.linspace(0, 1, QUANTILES)).tolist()
            made[name] = {"mean_ps": float(np.mean(times_ps)), **percentiles, "quantiles_ps": quantiles}
    return made
