"""Output of benchmarks of collectives in the forms that nccl-tests, rccl-tests and mscclpp-test have printed."""

import math
from typing import NamedTuple

from nadi.insight.node_times import bus_factor

PROGRAM = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
}


class Times(NamedTuple):
    """A size and its times in microseconds; nan = not measured."""

    size_bytes: int
    out_of_place_us: float
    in_place_us: float


def heading(ranks, hosts, group="Group  0 "):
    """Return the lines with which nccl-tests begins."""
    per_host = ranks // hosts
    yield "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1"
    yield "#"
    yield "# Using devices"
    for rank in range(ranks):
        place = f"host-{rank // per_host} device {rank % per_host:2d} [0x{rank % per_host:02x}]"
        yield f"#  Rank {rank:2d} {group}Pid {4000 + rank:6d} on {place} NVIDIA H100 80GB HBM3"
    yield "#"


def part(time_us, size_bytes, kind, ranks, last, unit=1.0):
    """Return time, algorithm and bus bandwidth, and the last column."""
    if math.isnan(time_us):
        return f"{'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"
    rate = size_bytes / time_us / 1e3
    time = f"{time_us / unit:7.3f}" if unit > 1 else f"{time_us:7.2f}" if time_us < 1e4 else f"{time_us:7.0f}"
    return f"{time}  {rate:6.2f}  {rate * bus_factor(kind, ranks):6.2f}  {last:>5}"


def first_version(rows, kind, ranks, hosts):
    """Yield the lines of nccl-tests 1: milliseconds, headings that begin with bytes."""
    yield from heading(ranks, hosts, "")
    yield "#                                            out-of-place                    in-place"
    yield "#  bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res"
    for size, out, within in rows:
        parts = [part(time, size, kind, ranks, "0e+00", 1e3) for time in (out, within)]
        yield f"{size:12d} {size // 4:12d}   float     sum  {parts[0]}  {parts[1]}"


def errors_as_numbers(rows, kind, ranks, hosts):
    """Yield the lines of nccl-tests 2.0 to 2.11: columns by collective, largest errors."""
    yield from heading(ranks, hosts, "")
    names = "type   redop    root" if kind == "reduce" else "type   redop" if "reduc" in kind else "type"
    words = " float     sum       0" if kind == "reduce" else " float     sum" if "reduc" in kind else " float"
    yield "#                                               out-of-place                       in-place"
    yield f"#       size         count    {names}     time   algbw   busbw  error     time   algbw   busbw  error"
    yield "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
    for size, out, within in rows:
        parts = [part(time, size, kind, ranks, "4e-07") for time in (out, within)]
        yield f"{size:12d} {size // 4:12d}   {words}  {parts[0]}  {parts[1]}"
    yield "# Out of bounds values : 0 OK"
    yield "# Avg bus bandwidth    : 220.921"


def today(rows, kind, ranks, hosts, timestamp="", per_iteration=False):
    """Yield the lines of nccl-tests 2.13 and later, and of rccl-tests."""
    yield from heading(ranks, hosts)
    more = "  (+ per-iteration)" if per_iteration else ""
    extra = "   i_min   i_max   i_p99   i_cv%" if per_iteration else ""
    yield f"#                                                 out-of-place{more}                       in-place{more}"
    columns = "time   algbw   busbw #wrong" + extra
    yield f"#       size         count      type   redop    root     {columns}     {columns}"
    yield "#        (B)    (elements)                             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
    values = "  30.10   44.00   43.10   2.50" if per_iteration else ""
    redop, root = ("sum" if "reduc" in kind else "none"), (0 if kind in {"reduce", "broadcast"} else -1)
    for size, out, within in rows:
        parts = [part(time, size, kind, ranks, 0 if "reduc" in kind else "N/A") + values for time in (out, within)]
        yield f"{size:12d}  {size // 4:12d}     float  {redop:>6}  {root:6d}  {parts[0]}  {parts[1]}{timestamp}"
    yield "# GPU memory usage     : 0.5 GiB"
    yield "# Out of bounds values : 0 OK"
    yield "# Avg bus bandwidth    : 220.921"


def of_mscclpp(rows, kind, ranks, hosts, counts=True):
    """Yield the lines of mscclpp-test: in-place first, one part blank, no data type."""
    yield from heading(ranks, hosts, "")
    yield "#                                        in-place                       out-of-place"
    yield "#       size         count     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong"
    yield "#        (B)    (elements)     (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"
    for size, out, within in rows:
        blank = " " * 33 if math.isnan(within) else ""
        measured = part(out if blank else within, size, kind, ranks, 0)
        yield f"{size:12d}  {size // 4:12d}  {blank}{measured if counts else measured.rsplit(maxsplit=1)[0]}"
