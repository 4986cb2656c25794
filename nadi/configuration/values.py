"""Values of run files as users write them, with units; values that name files; and the base class of sections.

Metadata of a key's field declares that the key's value names files (`NamesFiles`). The declaration has two uses: a run
file's relative paths count from its folder, and `input_files` lists and hashes the files that a configuration reads.
"""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from nadi import topologies, workload
from nadi.configuration import (
    MAX_BUFFER_BYTES,
    MAX_COLLECTIVES_IN_FLIGHT,
    MAX_LANES,
    MAX_WINDOW_PACKETS,
    MAX_WIRE_BYTES,
)
from nadi.inputs import plug_ins, units
from nadi.inputs.limits import LINK_RATE_BPS, LONGEST_PS, LONGEST_TIMEOUT_PS, MAX_BYTES, MEMORY_RATE_BPS
from nadi.pdes import settings_of
from nadi.pdes.wire import MAX_PATHS
from nadi.topologies import Graph
from nadi.workload import TraceSet
from nadi.workload.collectives.custom import custom_files
from nadi.workload.generators.training import ParallelPlan
from nadi.workload.trace_sets import files_of_traces

_LONGEST_VALUE = 60  # maximum number of digits of a count


def _above_zero(parse: Callable[[object], int], word: str = "") -> BeforeValidator:
    """Return a validator of numbers above zero; a word, if there is one, stands for 0."""

    def parse_value(value: object) -> int:
        if word and value == word:
            return 0
        number = parse(value)
        if number == 0:
            alternative = f" or {word!r}" if word else ""
            raise ValueError(f"{value!r} is zero; expected more than 0{alternative}")
        return number

    return BeforeValidator(parse_value)


def _word_or(word: str, show: Callable[[int], str]) -> PlainSerializer:
    return PlainSerializer(lambda value: show(value) if value else word)


def _bytes_to(most: int) -> Callable[[object], int]:
    return lambda value: units.parse_bytes_within(value, most)


def _check_ascending(values: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes that ascend; raise ValueError for others."""
    if list(values) != sorted(values):
        raise ValueError(f"{', '.join(map(units.format_bytes, values))} do not ascend; expected the smallest first")
    return values


def _time_to(longest_ps: int) -> Callable[[object], int]:
    return lambda value: units.parse_time_within(value, longest_ps)


def _parse_path(value: object) -> Path:
    """Return a path from its text; raise ValueError if it is none."""
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"{value!r} is not a path; expected text")
    return Path(value)


def _parse_count(value: object) -> int:
    """Return a count of collectives or phases."""
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < _LONGEST_VALUE else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_COLLECTIVES_IN_FLIGHT:
        raise ValueError(f"{units.short(value)}; expected a whole number from 1 to {MAX_COLLECTIVES_IN_FLIGHT}")
    return number


def _parse_packets(value: object) -> int | str:
    """Return a number of packets that a receiver may hold out of order, or "auto"."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WINDOW_PACKETS
    if not is_number and value != "auto":
        raise ValueError(f'{units.short(value)}; expected a whole number from 0 to {MAX_WINDOW_PACKETS}, or "auto"')
    return cast("int | str", value)


def _parse_paths(value: object) -> int:
    """Return a number of paths of a queue pair."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_PATHS
    if not is_number or cast("int", value).bit_count() != 1:
        raise ValueError(f"{units.short(value)}; expected a power of two from 1 to {MAX_PATHS}")
    return cast("int", value)


def _parse_choice(value: object) -> bool | str:
    """Return true, false or "auto"; raise ValueError for any other value."""
    if not isinstance(value, bool) and value != "auto":
        raise ValueError(f'{units.short(value)}; expected true, false or "auto"')
    return value


def _thresholds(label: object, own: object) -> tuple[int, int, float]:
    """Return kmin and kmax in bytes and pmax, from ["800kB", "3200kB", 0.2]; label: what they are of, for messages."""
    if not isinstance(own, list | tuple) or len(own) != 3:
        raise ValueError(
            f'{label}: found {units.short(own)}; expected kmin, kmax and pmax, as ["800kB", "3200kB", 0.2]'
        )
    kmin, kmax = (units.parse_bytes_within(size, MAX_BUFFER_BYTES) for size in own[:2])
    pmax = own[2]
    if kmin > kmax:
        raise ValueError(
            f"{label}: found kmin {units.format_bytes(kmin)} above kmax {units.format_bytes(kmax)}; expected less"
        )
    if isinstance(pmax, bool) or not isinstance(pmax, int | float) or not 0 <= pmax <= 1:
        raise ValueError(f"{label}: found pmax {units.short(pmax)}; expected a number from 0 to 1")
    return kmin, kmax, float(pmax)


def _parse_ecn_by_rate(value: object) -> object:
    """Return the thresholds of links by rate, from {"400Gbps": ["800kB", "3200kB", 0.2]}."""
    if not isinstance(value, dict):
        return value
    rows = []
    for rate, own in value.items():
        thresholds = _thresholds(rate, own)
        rows.append((units.parse_rate_within(rate, LINK_RATE_BPS), *thresholds))
    return tuple(rows)


def _show_ecn_by_rate(rows: tuple[tuple[int, int, int, float], ...] | None) -> dict[str, list[object]] | None:
    """Return the notation of `_parse_ecn_by_rate`."""
    if rows is None:
        return None
    return {
        units.format_rate(rate): [units.format_bytes(kmin), units.format_bytes(kmax), pmax]
        for rate, kmin, kmax, pmax in rows
    }


def _parse_ecn_by_class(value: object) -> object:
    """Return the thresholds of data classes, from {"3": ["800kB", "3200kB", 0.2]}."""
    if not isinstance(value, dict):
        return value
    rows = []
    for number, own in value.items():
        if str(number) not in _DATA_CLASSES:
            raise ValueError(f"found class {units.short(number)}; expected {_DATA_CLASSES[0]} to {_DATA_CLASSES[-1]}")
        rows.append((int(number), *_thresholds(f"class {number}", own)))
    return tuple(rows)


def _show_ecn_by_class(rows: tuple[tuple[int, int, int, float], ...] | None) -> dict[str, list[object]] | None:
    """Return the notation of `_parse_ecn_by_class`."""
    if rows is None:
        return None
    return {str(n): [units.format_bytes(kmin), units.format_bytes(kmax), pmax] for n, kmin, kmax, pmax in rows}


_DATA_CLASSES = [str(number) for number in range(MAX_LANES)]
_WALL_S = {"s": 1, "min": 60, "h": 3600}
_WALL_TIME = re.compile(r"(\d{1,9})\s*(s|min|h)")


def _parse_wall_time(value: object) -> int:
    """Return a wall time in seconds, 0 for "off"."""
    if value in ("off", 0):
        return 0
    match = _WALL_TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{units.short(value)} is no wall time; expected one such as 90s, 30min or 2h, or off")
    return int(match[1]) * _WALL_S[match[2]]


def _wall_time_text(value: int) -> str:
    """Return a wall time in the largest unit that divides it."""
    unit = next(name for name in ("h", "min", "s") if value % _WALL_S[name] == 0)
    return f"{value // _WALL_S[unit]}{unit}" if value else "off"


_PERCENTAGE = re.compile(r"(\d{1,2}(?:\.\d{1,3})?)\s*%")
_MOST_PERCENT = 10


def _parse_percentage(value: object) -> float:
    """Return the share that a percentage is, 0 for "off"."""
    if value in ("off", 0):
        return 0.0
    match = _PERCENTAGE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < float(match[1]) <= _MOST_PERCENT:
        raise ValueError(f'{units.short(value)}; expected a percentage above 0% and at most {_MOST_PERCENT}%, or "off"')
    return float(match[1]) / 100


def _percentage_text(value: float) -> str:
    """Return the notation of `_parse_percentage`."""
    return f"{100 * value:.3g}%" if value else "off"


FilePath = Annotated[Path, BeforeValidator(_parse_path)]
WallTime = Annotated[int, PlainValidator(_parse_wall_time), PlainSerializer(_wall_time_text)]  # seconds
Percentage = Annotated[float, PlainValidator(_parse_percentage), PlainSerializer(_percentage_text)]  # as a share
PacketSize = Annotated[int, _above_zero(_bytes_to(MAX_WIRE_BYTES)), PlainSerializer(units.format_bytes)]
PacketSizeOrAuto = Annotated[int, _above_zero(_bytes_to(MAX_WIRE_BYTES), "auto"), _word_or("auto", units.format_bytes)]
MessageSize = Annotated[int, _above_zero(_bytes_to(MAX_BUFFER_BYTES)), PlainSerializer(units.format_bytes)]
BufferSize = Annotated[int, _above_zero(_bytes_to(MAX_BUFFER_BYTES)), PlainSerializer(units.format_bytes)]
BufferSizeFromZero = Annotated[int, BeforeValidator(_bytes_to(MAX_BUFFER_BYTES)), PlainSerializer(units.format_bytes)]
Thresholds = Annotated[
    tuple[BufferSizeFromZero, BufferSizeFromZero, BufferSizeFromZero], AfterValidator(_check_ascending)
]
"""Three sizes in bytes, none smaller than the one before."""
BufferSizeOrAuto = Annotated[
    int, _above_zero(_bytes_to(MAX_BUFFER_BYTES), "auto"), _word_or("auto", units.format_bytes)
]
SizeOrAuto = Annotated[int, _above_zero(_bytes_to(MAX_BYTES), "auto"), _word_or("auto", units.format_bytes)]
SizeOrUnlimited = Annotated[
    int, _above_zero(_bytes_to(MAX_BYTES), "unlimited"), _word_or("unlimited", units.format_bytes)
]
Moment = Annotated[int, BeforeValidator(_time_to(LONGEST_PS)), PlainSerializer(units.format_time)]
Time = Annotated[int, BeforeValidator(_time_to(LONGEST_TIMEOUT_PS)), PlainSerializer(units.format_time)]
TimeAboveZero = Annotated[int, _above_zero(_time_to(LONGEST_TIMEOUT_PS)), PlainSerializer(units.format_time)]
TimeOrAuto = Annotated[int, _above_zero(_time_to(LONGEST_TIMEOUT_PS), "auto"), _word_or("auto", units.format_time)]
PacketsOrAuto = Annotated[int | Literal["auto"], PlainValidator(_parse_packets)]
Paths = Annotated[int, PlainValidator(_parse_paths)]
ChoiceOrAuto = Annotated[bool | Literal["auto"], PlainValidator(_parse_choice)]
CountOrUnlimited = Annotated[int, _above_zero(_parse_count, "unlimited"), _word_or("unlimited", str)]
EcnByRate = Annotated[
    tuple[tuple[int, int, int, float], ...], BeforeValidator(_parse_ecn_by_rate), PlainSerializer(_show_ecn_by_rate)
]
"""Rates in bits per second, each with its thresholds in bytes and its share of marked packets."""
EcnByClass = Annotated[
    tuple[tuple[int, int, int, float], ...], BeforeValidator(_parse_ecn_by_class), PlainSerializer(_show_ecn_by_class)
]
"""Data classes, each with its thresholds in bytes at 25 Gb/s and its share of marked packets."""


def _or_auto(
    parse: Callable[[object], object], show: Callable[[Any], object]
) -> tuple[BeforeValidator, PlainSerializer]:
    """Return validator and serializer of a value that a run settles: "auto" is None."""
    return (
        BeforeValidator(lambda value: None if value is None or value == "auto" else parse(value)),
        PlainSerializer(lambda value: "auto" if value is None else show(value)),
    )


FactorOrAuto = Annotated[float | None, *_or_auto(lambda value: value, float)]
"""A factor; None = "auto", settled from the model's framework."""
WorkersOrAuto = Annotated[int | None, *_or_auto(lambda value: value, int)]
"""A number of workers or parts; None = "auto", settled from fabric, work and machine."""
TickOrAuto = Annotated[int | None, *_or_auto(_time_to(LONGEST_TIMEOUT_PS), units.format_time)]
"""A time in picoseconds; None = "auto", settled from fabric and work."""
Weight = Annotated[int, Field(ge=1, le=65535)]
WeightFromZero = Annotated[int, Field(ge=0, le=65535)]
DataClass = Annotated[int, Field(strict=True, ge=0, le=MAX_LANES - 1)]
OptionalRate = Annotated[
    int | None,
    BeforeValidator(lambda value: units.parse_rate_within(value, MEMORY_RATE_BPS)),
    PlainSerializer(lambda bps: None if bps is None else units.format_rate(bps)),
]
OptionalFlops = Annotated[
    float | None,
    BeforeValidator(units.parse_flops),
    PlainSerializer(lambda rate: None if rate is None else units.format_flops(rate)),
]


class Section(BaseModel):
    """A section of the run file: immutable; unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def engine_settings(self, owner: type, keys: Container[str] | None = None) -> dict[str, Any]:
        """Return the settings of an engine class that the section sets, by name; "auto" leaves the engine's default.

        Args:
            owner: The class of the engine.
            keys: The keys of the section that have an effect; None = all.
        """
        given = [each for each in settings_of(owner) if each.is_given and (keys is None or each.key in keys)]
        values = {setting.name: getattr(self, setting.key, None) for setting in given}
        return {name: value for name, value in values.items() if value is not None and value != "auto"}


def _given(kind: type) -> PlainValidator:
    """Return a validator of a value that Python gives, or of the text that represents the value in results."""

    def parse(value: object) -> object:
        if value is None or isinstance(value, kind) or (isinstance(value, str) and value):
            return value
        raise ValueError(f"found a {type(value).__name__}; expected a {kind.__name__}, which only Python can give")

    return PlainValidator(parse)


def _graph_text(value: Graph | str | None) -> str | None:
    return f"{value.name}, made in Python" if isinstance(value, Graph) else value


def _traces_text(value: TraceSet | str | None) -> str | None:
    return f"{len(value.traces)} traces, made in Python" if isinstance(value, TraceSet) else value


GivenGraph = Annotated[Graph | str | None, _given(Graph), PlainSerializer(_graph_text)]
GivenTraces = Annotated[TraceSet | str | None, _given(TraceSet), PlainSerializer(_traces_text)]


Change = Callable[[str], str]  # function that returns the replacement of a path


def _itself(path: Path) -> Sequence[Path]:
    return [path]


def _none(_value: object) -> Sequence[Path]:
    return []


@dataclass(frozen=True)
class NamesFiles:
    """Declaration that the value of a key names files."""

    # function of a value and a `Change`; it returns the value with each of its paths changed
    change: Callable[[Any, Change], Any]
    # function of one such path; it returns the files that a run reads for it
    files: Callable[[Path], Sequence[Path]] = _itself
    # function of a value; it returns the files of plug-ins of installed packages that the value names
    installed: Callable[[Any], Sequence[Path]] = _none
    is_plug_in: bool = False  # whether validation reads the files, so that their paths must be absolute before


def _path(value: Path | None, change: Change) -> Path | None:
    return None if value is None else Path(change(str(value)))


def _path_or_word(*words: str) -> Callable[[str, Change], str]:
    return lambda value, change: value if value in words else change(value)


def _if_file(value: str | None, change_path: Change) -> str | None:
    """Return `change_path(value)` if that file exists, else the value, a name of the library."""
    if value is None:
        return None
    changed = change_path(value)
    return changed if Path(changed).is_file() else value


def _by_ending(*endings: str) -> Callable[[str | None, Change], str | None]:
    """Return a function that changes values with one of these endings, which are paths; others are library names."""
    return lambda value, change: change(value) if value is not None and Path(value).suffix in endings else value


def _each(change_value: Callable[[Any, Change], Any]) -> Callable[[Sequence[Any], Change], tuple[Any, ...]]:
    return lambda values, change: tuple(change_value(value, change) for value in values)


def _spec(spec: str | None, change_path: Change) -> str | None:
    """Apply a change to the paths in the specification of a fabric or cluster; names of the library stay."""
    if spec is None:
        return None
    changed = topologies.with_paths(spec, change_path)
    if changed is not None:
        return changed
    name, colon, rest = spec.strip().partition(":")
    is_toml = Path(name).suffix == ".toml"  # a fabric, or a cluster with parameters
    return f"{_if_file(name, change_path)}{colon}{rest}" if is_toml else _if_file(spec.strip(), change_path)


def _plug_in(kind: str) -> NamesFiles:
    """Return the declaration of a key that names a plug-in of a kind, perhaps with parameters: "mine.py:npus=8"."""
    return NamesFiles(
        lambda text, change: plug_ins.with_path(kind, text, change) if isinstance(text, str) else text,
        installed=lambda text: _installed(kind, text),
        is_plug_in=True,
    )


def _installed(kind: str, text: str | None) -> Sequence[Path]:
    file = plug_ins.outside_file(kind, text.partition(":")[0].strip()) if text else None
    return [] if file is None else [file]


def _plan(plan: Any, change: Change) -> Any:  # noqa: ANN401 - a plan, or its text or table
    """Apply a change to the path of a plan's pipeline schedule."""
    if isinstance(plan, ParallelPlan):
        return plan.model_copy(update=_plan({"schedule": plan.schedule}, change))
    if isinstance(plan, dict) and isinstance(plan.get("schedule"), str):
        return plan | {"schedule": plug_ins.with_path(SCHEDULE, plan["schedule"], change)}
    if isinstance(plan, str):
        parts = [part.rpartition("=") for part in plan.split(",")]
        return ",".join(key + equals + plug_ins.with_path(SCHEDULE, value, change) for key, equals, value in parts)
    return plan


def _params(value: Mapping[str, Any], change: Change) -> dict[str, Any]:
    paths = topologies.path_parameters()
    return {key: change(str(entry)) if key in paths else entry for key, entry in value.items()}


def _algorithms(value: Mapping[str, str], change: Change) -> dict[str, str]:
    return {kind: workload.with_path(spec, change) for kind, spec in value.items()}


def _results(folder: Path) -> Sequence[Path]:
    return [folder / "summary.json", folder / "links.parquet"]


PLACEMENT_ENDING = ".txt"  # of a file that holds the NPUs of a job


def _placement(value: str | Sequence[int], change: Change) -> str | Sequence[int]:
    """Return the placement of a job with its path changed, if it names a file."""
    return change(value) if isinstance(value, str) and value.endswith(PLACEMENT_ENDING) else value


FILE = NamesFiles(_path)
SIZES = NamesFiles(_if_file)
PLACEMENT = NamesFiles(_placement)
TRACES = NamesFiles(_path, files_of_traces)
MODEL = NamesFiles(_if_file, installed=lambda name: _installed("model", name))
SPEC = NamesFiles(_spec, installed=lambda spec: _installed("topology", spec))
TOPOLOGY = _plug_in("topology")
CLUSTER = _plug_in("cluster")
PARAMS = NamesFiles(_params)
SCHEDULE = "pipeline schedule"
PLAN = NamesFiles(_plan, installed=lambda plan: _installed(SCHEDULE, plan and plan.schedule), is_plug_in=True)
ALGORITHMS = NamesFiles(
    _algorithms,
    custom_files,
    lambda specs: [file for spec in specs.values() for file in _installed("collective algorithm", spec)],
)
GPU = _plug_in("GPU")
CONTROL = _plug_in("congestion control")
BALANCING = _plug_in("load balancing")
ENTROPY = _plug_in("entropy rule")
ROUTING = _plug_in("routing")
DISCIPLINE = _plug_in("switch discipline")
FIDELITY = _plug_in("network model")
PARTITIONER = _plug_in("partition method")
TABLES = NamesFiles(_each(_by_ending(".csv", ".parquet")))
OUTPUT_FOLDER = NamesFiles(_path, lambda _: [])


def naming_keys(section: type[BaseModel]) -> dict[str, NamesFiles]:
    """Return the keys of a section that name files, with their declarations."""
    return {
        key: marker
        for key, field in section.model_fields.items()
        for marker in field.metadata
        if isinstance(marker, NamesFiles)
    }


def with_paths(section: BaseModel, change: Change) -> BaseModel:
    """Return a section, and sections in it, with a change applied to each path that it names."""
    keys = naming_keys(type(section))
    values: dict[str, Any] = {key: marker.change(getattr(section, key), change) for key, marker in keys.items()}
    values |= {key: with_paths(inner, change) for key, inner in section if isinstance(inner, BaseModel)}
    return section.model_copy(update=values) if values else section


def results_or(*words: str) -> NamesFiles:
    """Return the declaration of a key whose value is the folder of an earlier run, or one of these words."""
    return NamesFiles(_path_or_word(*words), _results)
