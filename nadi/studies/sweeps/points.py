"""From a sweep file to points: which keys of a run file take which values together.

A sweep file is TOML. `run` names the run file, from the sweep file's folder. `[values]` lists values by key, and every
combination is a point (method "grid"); `[[points]]` are the points themselves ("list"); `[ranges]` gives two ends by
key, from which a Latin hypercube draws (McKay, Beckman, Conover 1979, by scipy.stats.qmc): each key's range is cut into
as many strata as there are points, and each stratum is used once.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import inputs
from nadi import __version__
from nadi.configuration.input_files import Known, files_read
from nadi.configuration.run_file import explain, load_config
from nadi.configuration.sections import RunConfig
from nadi.errors import ConfigError
from nadi.insight.runs.figures import FIGURES
from topologies.units import format_bytes, format_rate, format_time, parse_bytes, parse_rate, parse_time

MOST_POINTS = 100_000
_LONGEST_FOLDER = 20
Value = str | int | float | bool | list[Any] | dict[str, Any]


class Range(BaseModel):
    """Two ends, both included, of a key that is drawn from.

    Attributes:
        least, most: numbers, or texts with a unit: "1KiB", "100Gbps", "1us".
        scale: whether steps are equal in value or in ratio.
        whole: only whole numbers; of texts with a unit, of that quantity's smallest unit, always.
    """

    model_config = ConfigDict(extra="forbid")

    least: int | float | str
    most: int | float | str
    scale: Literal["linear", "log"] = "linear"
    whole: bool = False


class SweepFile(BaseModel):
    """What a sweep file holds."""

    model_config = ConfigDict(extra="forbid")

    run: str | None = Field(None, description="run file, from the folder of this file; None = keys say all")
    method: Literal["grid", "list", "latin-hypercube"] = Field("grid", description="how points are made")
    values: dict[str, Annotated[list[Value], Field(min_length=1)]] = Field(
        default_factory=dict, description="of grids: values by key; beside ranges or points, of all of them"
    )
    points: list[dict[str, Value]] = Field(default_factory=list, description="of lists: values by key, for each point")
    ranges: dict[str, Range] = Field(default_factory=dict, description="of Latin hypercubes: two ends by key")
    rank: str = Field(
        "", description="figure by which points are ranked, as p99_completion_ps; without: the step's time"
    )
    samples: int = Field(0, ge=0, le=MOST_POINTS, description="points of a Latin hypercube")
    seed: int = Field(1, ge=0, description="of a Latin hypercube")


class Point(NamedTuple):
    """One run of a sweep.

    Attributes:
        values: by key of the run file.
        config: settled.
        name: of its folder: a hash of the configuration, of the files that it names and of Nadi's version, so that
            equal names are equal runs.
    """

    values: Mapping[str, Value]
    config: RunConfig
    name: str

    def overrides(self) -> list[str]:
        """As --set takes them."""
        return [f"{key}={toml(value)}" for key, value in self.values.items()]


class SweepDefinition(NamedTuple):
    """A sweep file, read.

    Attributes:
        path: the sweep file.
        run_file: the run file; None = there is none.
        keys: that differ, in order.
        points: all of them, in order.
        rank: Name of the figure by which points are ranked; "" = a default.
    """

    path: Path
    run_file: Path | None
    keys: tuple[str, ...]
    points: list[Point]
    rank: str = ""


def read_sweep(path: Path) -> SweepDefinition:
    """Read a sweep file; each of its points is checked as a run file is.

    Raises:
        ConfigError: what is wrong, in one line.
        WorkloadError, TopologyError: of a point, that a model, a plan or a fabric is wrong.
    """
    try:
        file = SweepFile.model_validate(inputs.parse_toml(inputs.read_text(path)))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; expected a sweep file") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, SweepFile)}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no TOML: {error}; expected a sweep file") from None
    names = [figure.name for figure in FIGURES]
    if file.rank and file.rank not in names:
        raise ConfigError(f"{path}: rank: found {file.rank!r}; expected one of {', '.join(names)}")
    run_file = path.parent / file.run if file.run else None
    chosen = _chosen(path, file)
    if len(chosen) > MOST_POINTS:
        raise ConfigError(f"{path}: {len(chosen):,} points; expected at most {MOST_POINTS:,}")
    files: Known = {}
    points: list[Point] = []
    seen: dict[str, int] = {}
    for number, values in enumerate(chosen):
        try:
            config = load_config(run_file, [f"{key}={toml(value)}" for key, value in values.items()])
        except ValueError as error:
            said = ", ".join(f"{key} = {value}" for key, value in values.items())
            raise ConfigError(f"{path}: point {number} ({said}): {error}") from None
        point = Point(values, config, _name(config, files))
        if point.name in seen:
            raise ConfigError(f"{path}: points {seen[point.name]} and {number} are the same run; expected each once")
        seen[point.name] = number
        points.append(point)
    keys = tuple(dict.fromkeys(key for values in chosen for key in values))
    return SweepDefinition(path, run_file, keys, points, file.rank)


def toml(value: Value) -> str:
    """As TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(inner) for inner in value) + "]"
    return json.dumps(value)


def _chosen(path: Path, file: SweepFile) -> list[dict[str, Value]]:
    """Values by key, of each point."""
    needs = {"grid": "values", "list": "points", "latin-hypercube": "ranges"}[file.method]
    if not getattr(file, needs):
        raise ConfigError(f'{path}: {needs}: missing; expected it with method = "{file.method}"')
    for other in {"points", "ranges"} - {needs}:
        if getattr(file, other):
            raise ConfigError(f'{path}: {other}: found beside method = "{file.method}"; expected {needs}')
    grid = [dict(zip(file.values, chosen, strict=True)) for chosen in itertools.product(*file.values.values())]
    if file.method == "grid":
        return grid
    own = file.points if file.method == "list" else _drawn(path, file)
    return [{**common, **point} for common in grid for point in own]


def _drawn(path: Path, file: SweepFile) -> list[dict[str, Value]]:
    """Points of a Latin hypercube."""
    from scipy.stats import qmc

    if file.samples < 1:
        raise ConfigError(f'{path}: samples: found {file.samples}; expected 1 or more with method = "latin-hypercube"')
    places = qmc.LatinHypercube(d=len(file.ranges), rng=file.seed).random(file.samples)
    return [
        {key: _at(path, key, ends, float(place)) for (key, ends), place in zip(file.ranges.items(), row, strict=True)}
        for row in places
    ]


_QUANTITIES = ((parse_bytes, format_bytes), (parse_rate, format_rate), (parse_time, format_time))


def _at(path: Path, key: str, ends: Range, place: float) -> Value:
    """The value at a place from 0 to 1 of a range."""
    read, write = _quantity(path, key, ends)
    least, most = (float(read(end)) for end in (ends.least, ends.most))
    if not least <= most or (ends.scale == "log" and least <= 0):
        raise ConfigError(
            f"{path}: ranges.{key}: found {ends.least} to {ends.most}; expected rising ends"
            + (" above 0" if ends.scale == "log" else "")
        )
    value = least * (most / least) ** place if ends.scale == "log" else least + (most - least) * place
    if isinstance(ends.least, str):
        return write(round(value))
    return round(value) if ends.whole else value


def _quantity(path: Path, key: str, ends: Range) -> tuple[Any, Any]:
    """What reads both ends, and what writes a value."""
    if not isinstance(ends.least, str) and not isinstance(ends.most, str):
        return float, float
    for read, write in _QUANTITIES:
        try:
            read(ends.least), read(ends.most)
        except (ValueError, TypeError, AttributeError):
            continue
        return read, write
    found = f"found {ends.least!r} to {ends.most!r}"
    raise ConfigError(f"{path}: ranges.{key}: {found}; expected two numbers, sizes, rates or times")


def _name(config: RunConfig, known: Known) -> str:
    """A hash of all that the run depends on; known: files that were hashed already."""
    files = [entry.document() for entry in files_read(config, known)]
    text = json.dumps({"version": __version__, "config": config.settled(), "files": files}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_LONGEST_FOLDER]
