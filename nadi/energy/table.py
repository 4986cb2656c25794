"""The table of powers and prices: TOML, each key with its unit at its end."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

import inputs
from nadi.errors import ConfigError
from topologies.units import parse_link_rate, short

DEFAULT = Path(__file__).with_name("table.toml")
OTHER = "other"
"""The GPU of runs that name none that the table knows."""
_EXPECTED = "expected a table of powers and prices in TOML"

_Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)]
_Share = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False, strict=True)]
_Rate = Annotated[int, BeforeValidator(parse_link_rate)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GpuCost(_Row):
    """Of one kind of GPU.

    Attributes:
        tdp_W: thermal design power.
        usd_per_hour: what an hour costs where GPUs are rented, electricity and network included; or
        usd: what one costs with its share of server and network, and
        years: for how long it is used.
        used: share of these years in which it works.
    """

    tdp_W: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False, strict=True)]  # noqa: N815 - watts
    usd_per_hour: _Amount | None = None
    usd: _Amount | None = None
    years: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False, strict=True)] | None = None
    used: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, strict=True)] = 1.0

    @model_validator(mode="after")
    def _rented_or_owned(self) -> Self:
        if (self.usd_per_hour is None) == (self.usd is None) or (self.usd is None) != (self.years is None):
            raise ValueError("expected usd_per_hour, or usd and years")
        return self


class Power(_Row):
    """Of a GPU, as shares of its TDP, by what it does."""

    compute: _Share
    communication: _Share
    memory: _Share
    idle: _Share


class Host(_Row):
    """Of a server without GPUs, NICs and NVSwitches."""

    W_per_gpu: _Amount


class PortPower(_Row):
    """Of a port: `W` at `rate_bps`, in proportion at others, and picojoules for each bit that it sends."""

    W: _Amount
    rate_bps: _Rate = Field(alias="rate")
    pJ_per_bit: _Amount  # noqa: N815 - picojoules


class Facility(_Row):
    """Of the data centre: `pue`, its energy over that of the machines in it."""

    pue: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False, strict=True)]
    usd_per_kWh: _Amount  # noqa: N815 - kilowatt hours


class EnergyTable(_Row):
    """A whole table; its keys are those of table.toml.

    Attributes:
        sources: where numbers are from, by their paths ("nic.W").
        ranges: what others may find, from the least to the most.
    """

    gpus: dict[str, GpuCost]
    power: Power
    host: Host
    nic: PortPower
    switch_port: PortPower
    transceiver: PortPower
    nvswitch_port: PortPower
    direct_port: PortPower
    facility: Facility
    sources: dict[str, str] = {}
    ranges: dict[str, tuple[_Amount, _Amount]] = {}


class Chosen(NamedTuple):
    """A GPU of a table.

    Attributes:
        name: in the table.
        cost: what stands there.
    """

    name: str
    cost: GpuCost


def choose(table: EnergyTable, gpu: str) -> Chosen:
    """The GPU of this name, or the one for those that are not known; of a path its stem is the name."""
    name = Path(gpu).stem.lower() if gpu else OTHER
    known = {key.lower(): key for key in table.gpus}
    found = known.get(name, OTHER)
    return Chosen(found, table.gpus[found])


def read_table(path: Path | None = None) -> EnergyTable:
    """The default table, or a user's over it.

    Args:
        path: of the user's.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or says something that is no power or price.
    """
    return _default() if path is None else _validated(path, _over(_tree(DEFAULT), _tree(path)))


@cache
def _default() -> EnergyTable:
    return _validated(DEFAULT, _tree(DEFAULT))


def _tree(path: Path) -> dict[str, Any]:
    try:
        return inputs.parse_toml(inputs.read_text(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; {_EXPECTED}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no TOML: {error}; {_EXPECTED}") from None


def _over(default: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The user's values over the default's; a GPU that is owned is not rented, and the other way round."""
    made = dict(default)
    for key, value in own.items():
        under = default.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            if "usd" in value:
                under = {name: of for name, of in under.items() if name != "usd_per_hour"}
            made[key] = _over(under, value)
        else:
            made[key] = value
    return made


def _validated(path: Path, tree: dict[str, Any]) -> EnergyTable:
    try:
        return EnergyTable.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_complaint(error)}") from None


def _complaint(error: ValidationError) -> str:
    found: Any = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    where = ".".join(map(str, found["loc"]))
    if found["type"] == "extra_forbidden":
        return f"{where}: unknown key; expected those of {DEFAULT}"
    if found["type"] == "missing":
        return f"{where}: missing; expected it beside the others"
    reason = found.get("ctx", {}).get("error")
    if reason is not None:
        return f"{where}: {reason}"
    return f"{where}: found {short(found['input'])}; {found['msg'].lower().replace('input should be', 'expected')}"
