"""Schema of summary.json of a run, for readers of files that others may have changed."""

from typing import Annotated, Any, NotRequired, Required

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

_STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")
_LARGEST = 1 << 62
_LARGEST_FABRIC = 1 << 26  # maximum number of NPUs, nodes or links of a fabric, which bounds what readers allocate

_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_Size = Annotated[int, Field(ge=0, le=_LARGEST_FABRIC)]
_Amount = Annotated[float, Field(ge=0, le=1e30)]
_Text = Annotated[str, Field(max_length=10_000)]


def _plain_extras(document: dict[str, Any]) -> dict[str, Any]:
    """Require that keys without a schema hold a text or a non-negative number."""
    for key, value in document.items():
        if key in RunSummary.__annotations__ or isinstance(value, str):
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LARGEST:
            raise ValueError(f"{key}: expected a text or a number from 0 on")
    return document


@with_config(_STRICT)
class ExpectedPorts(TypedDict):
    """Ports of one kind: how many the run uses, their rates in bits per second, sent bytes, and how many there are."""

    number: _Amount
    rate_bps: _Amount
    tx_bytes: _Amount
    present: _Count


@with_config(_STRICT)
class PortsByKind(TypedDict):
    """Expected use of ports in a run at closed forms."""

    used: dict[str, ExpectedPorts]
    unused_switches: _Count


@with_config(_STRICT)
class RequestTimes(TypedDict):
    """Times of requests in picoseconds: mean, percentiles (None: too few), and the quantiles from 0 % to 100 %."""

    mean_ps: _Amount
    p50_ps: _Amount
    p90_ps: _Amount | None
    p95_ps: _Amount | None
    p99_ps: _Amount | None
    quantiles_ps: Annotated[list[_Amount], Field(min_length=101, max_length=101)]


@with_config(_STRICT)
class ServingFigures(TypedDict):
    """Throughput and latencies of served requests."""

    requests: _Count
    tokens: _Count
    tokens_per_s: _Amount
    ttft: NotRequired[RequestTimes]
    tpot: NotRequired[RequestTimes]


@with_config(_STRICT)
class HashedFiles(TypedDict):
    """Files of one key of the run file, with their hash."""

    key: _Text
    path: _Text
    files: _Count
    bytes: _Count
    sha256: _Text


@with_config(_STRICT)
class SharedLinks(TypedDict):
    """Links that a job shares with another one."""

    job: _Text
    links: _Count
    bytes: _Count
    other_bytes: _Count
    link: _Count
    link_name: _Text


@with_config(_STRICT)
class JobFigures(TypedDict):
    """Results of a job."""

    name: _Text
    npus: _Size
    start_ps: _Count
    finish_ps: _Count
    time_ps: _Count
    digest: _Text
    compute_slowdown: NotRequired[_Amount]
    step: dict[str, _Amount]
    alone_ps: NotRequired[_Count]
    slowdown: NotRequired[_Amount]
    shares: list[SharedLinks]


@with_config(_STRICT)
class DoneCollectives(TypedDict):
    """Collectives of a kind that are done so far, and their mean time."""

    kind: _Text
    done: _Count
    mean_ps: _Amount


@with_config(_STRICT)
class PartialFigures(TypedDict):
    """Figures of a run that is not over."""

    simulated_ps: _Count
    steps_done: NotRequired[_Count]
    steps: NotRequired[_Count]
    compute_share: _Amount
    exposed_share: _Amount
    collectives: list[DoneCollectives]


@with_config(_STRICT)
class _Compute(TypedDict, total=False):
    gpu: _Text | None


@with_config(_STRICT)
class _Energy(TypedDict, total=False):
    table: _Text | None


@with_config(_STRICT)
class _Workload(TypedDict, total=False):
    model: _Text | None
    plan: _Text | dict[str, Any] | None


@with_config(_STRICT)
class _Config(TypedDict, total=False):
    """Settled run file; `nadi.configuration.run_config.RunConfig` validates all of it before a run is built again."""

    workload: _Workload
    topology: dict[str, Any]
    system: dict[str, Any]
    network: dict[str, Any]
    compute: _Compute
    memory: dict[str, Any]
    energy: _Energy


@with_config(_STRICT)
class RunSummary(TypedDict, total=False):
    """Keys that readers use; other keys are counters and names."""

    version: _Text
    network: Required[_Text]
    switches: _Text
    topology: _Text
    digest: _Text
    working_folder: _Text
    npus: Required[_Size]
    nodes: Required[_Size]
    links: Required[_Size]
    finish_time_ps: Required[_Count]
    without_faults_ps: _Count
    packet_hops: _Count
    dropped_packets: _Count
    marked_packets: _Count
    pause_frames: _Count
    retransmitted_packets: _Count
    timeouts: _Count
    events: _Count
    windows: _Count
    flows: _Count
    packets: _Count
    payload_bytes: _Count
    ranks: _Count
    threads: _Count
    processes: _Count
    lps: _Count
    wall_s: _Amount
    setup_s: _Amount
    first_event_s: float
    packet_hops_per_s: _Amount
    reuse: dict[str, _Count]
    peak_rss_bytes: _Count
    warnings: list[_Text]
    files: list[HashedFiles]
    step: dict[str, _Amount]
    jobs: list[JobFigures]
    partial: PartialFigures
    operators: dict[str, _Count]
    serving: ServingFigures
    ports: PortsByKind
    settled: dict[str, Any]
    config: _Config
    named: list[_Text]


SUMMARY = TypeAdapter(Annotated[RunSummary, AfterValidator(_plain_extras)])
