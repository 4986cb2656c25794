"""Schema of the fields of a Kineto trace that Nadi reads; other fields may be anything.

Sources: pytorch/kineto libkineto/src/output_json.cpp, and torch/csrc/profiler/collection.cpp for the arguments of
collectives. Numbers may also be written as text.
"""

from typing import Annotated, Any, Required

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

_OTHERS_ARE_KEPT = ConfigDict(extra="allow", allow_inf_nan=False, coerce_numbers_to_str=True)
_MAX_DURATION_US = 1_000_000_000_000  # longest duration in microseconds, 11.6 days, the limit for trace nodes, too
_LAST_US = 4_000_000_000_000_000
"""Latest time stamp in microseconds, in the year 2096, so that sums in nanoseconds fit into 64 bits."""
MAX_RANKS = 1 << 31

_Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
_Elements = Annotated[int, Field(ge=0, lt=1 << 56)]
"""Elements of a message: with at most 16 bytes per element the bytes fit into 64 bits."""
_Rank = Annotated[int, Field(ge=-1, lt=MAX_RANKS)]
_Ranks = Annotated[int, Field(ge=0, lt=MAX_RANKS)]
_Time = Annotated[int, Field(ge=-_LAST_US, le=_LAST_US)] | Annotated[float, Field(ge=-_LAST_US, le=_LAST_US)]
_Duration = Annotated[int, Field(le=_MAX_DURATION_US)] | Annotated[float, Field(le=_MAX_DURATION_US)]
_Numbers = str | list[_Int64]

KinetoArguments = TypedDict(
    "KinetoArguments",
    {
        "Record function id": _Int64,
        "External id": _Int64 | str | None,
        "correlation": _Int64,
        "stream": _Int64,
        "wait_on_stream": _Int64 | str | None,
        "wait_on_cuda_event_record_corr_id": _Int64,
        "Collective name": str,
        "dtype": str,
        "In msg nelems": _Elements,
        "Out msg nelems": _Elements,
        "Group size": _Ranks,
        "Src Rank": _Rank | None,
        "Dst Rank": _Rank | None,
        "Root Rank": _Rank | None,
        "In split size": _Numbers,
        "Out split size": _Numbers,
        "Process Group Name": str,
        "Process Group Ranks": _Numbers,
        "Input Dims": list[Any],
        "Input type": list[Any],
        "Concrete Inputs": list[Any],
    },
    total=False,
)
"""Arguments of an event."""
KinetoArguments.__pydantic_config__ = _OTHERS_ARE_KEPT  # type: ignore[attr-defined]


@with_config(_OTHERS_ARE_KEPT)
class KinetoEvent(TypedDict, total=False):
    """A complete event, `"ph": "X"`; times in microseconds."""

    name: Required[str]
    ts: Required[_Time]
    tid: Required[_Int64]
    dur: _Duration
    args: KinetoArguments


@with_config(_OTHERS_ARE_KEPT)
class KinetoGroup(TypedDict, total=False):
    """A process group."""

    pg_name: Required[str]
    pg_size: _Ranks
    ranks: list[_Rank] | Any


@with_config(_OTHERS_ARE_KEPT)
class KinetoHead(TypedDict, total=False):
    """Fields of a trace beside its events."""

    baseTimeNanoseconds: Annotated[int, Field(ge=0, le=_LAST_US * 1000)]


EVENT = TypeAdapter(KinetoEvent)
GROUP = TypeAdapter(KinetoGroup)
HEAD = TypeAdapter(KinetoHead)
