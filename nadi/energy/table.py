"""The table of powers and prices: a TOML file whose keys end with their units."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from nadi.errors import ConfigError
from nadi.inputs.documents import checked, read_toml
from nadi.inputs.units import parse_link_rate

DEFAULT = Path(__file__).with_name("table.toml")
# Words that a source may begin with: how its number was obtained
BASES = ("published", "measured", "derived", "assumed")
OTHER = "other"  # The table's GPU for runs whose GPU is unknown or not in the table

_Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)]
_Share = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False, strict=True)]
_Rate = Annotated[int, BeforeValidator(parse_link_rate)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GpuCost(_Row):
    """Power and price of one kind of GPU: rented (`usd_per_hour`) or owned (`usd` and `years`)."""

    # Thermal design power in watts
    tdp_W: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False, strict=True)]  # noqa: N815 - watts
    usd_per_hour: _Amount | None = None  # Rent in dollars per hour, electricity and network included
    usd: _Amount | None = None  # Purchase price in dollars, with the GPU's share of server and network
    # Service life in years over which the purchase price is spread
    years: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False, strict=True)] | None = None
    # Share of the service life in which the GPU works, 0 to 1
    used: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, strict=True)] = 1.0

    @model_validator(mode="after")
    def _rented_or_owned(self) -> Self:
        """Refuse entries with neither or both of a rent and a price with years."""
        if (self.usd_per_hour is None) == (self.usd is None) or (self.usd is None) != (self.years is None):
            raise ValueError("expected usd_per_hour, or usd and years")
        return self


class Power(_Row):
    """Power of a GPU by activity, as a share of its thermal design power."""

    compute: _Share
    communication: _Share
    memory: _Share
    idle: _Share


class HostPower(_Row):
    """Power of a server without its GPUs, NICs and NVSwitches."""

    W_per_gpu: _Amount


class PortPower(_Row):
    """Power and price of a port at `rate_bps`, proportional at other rates, plus picojoules per bit that it sends."""

    W: _Amount
    rate_bps: _Rate = Field(alias="rate")
    pJ_per_bit: _Amount  # noqa: N815 - picojoules
    usd: _Amount | None = None  # Purchase price in dollars at `rate_bps`; None = no price


class NetworkLife(_Row):
    """Service life that the purchase prices of ports are divided by."""

    years: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False, strict=True)]  # Service life in years
    # Share of the service life in which the network serves runs, 0 to 1
    used: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, strict=True)] = 1.0


class Facility(_Row):
    """The data centre: price of energy, and power usage effectiveness (total energy over that of the machines)."""

    pue: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False, strict=True)]
    usd_per_kWh: _Amount  # noqa: N815 - kilowatt hours


class EnergyTable(_Row):
    """A table of powers and prices with the keys of table.toml."""

    gpus: dict[str, GpuCost]
    power: Power
    host: HostPower
    nic: PortPower
    switch_port: PortPower
    transceiver: PortPower
    nvswitch_port: PortPower
    direct_port: PortPower
    facility: Facility
    network_life: NetworkLife | None = None  # None = ports have no price
    sources: dict[str, str] = {}  # Source of each number, by the number's path such as "nic.W"
    ranges: dict[str, tuple[_Amount, _Amount]] = {}  # Plausible minimum and maximum of numbers, by path

    @model_validator(mode="after")
    def _prices_have_a_life(self) -> Self:
        """Refuse prices of ports without the years of their service life."""
        ports = {
            name: getattr(self, name) for name in ("nic", "switch_port", "transceiver", "nvswitch_port", "direct_port")
        }
        priced = [name for name, port in ports.items() if port.usd is not None]
        if priced and self.network_life is None:
            raise ValueError(f"{priced[0]}.usd without [network_life] years, expected years over which it is spread")
        return self


def choose(table: EnergyTable, gpu: str) -> tuple[str, GpuCost]:
    """Return name and cost of the table's GPU of this name, or OTHER if it lacks it; the name of a path is its stem.

    Args:
        gpu: The name of the GPU, or the path of the file that describes it.
        table: Powers and prices of devices.
    """
    name = Path(gpu).stem.lower() if gpu else OTHER
    key = {key.lower(): key for key in table.gpus}.get(name, OTHER)
    return key, table.gpus[key]


def read_table(path: Path | None = None) -> EnergyTable:
    """Return the default table, with the values of a user's table in place of its own; ConfigError if it is wrong.

    Args:
        path: The user's file of powers and prices; None for the default table.
    """
    if path is None:
        return _default()
    return checked(EnergyTable, _over(_tree(DEFAULT), _tree(path)), path, ConfigError)


@cache
def _default() -> EnergyTable:
    return checked(EnergyTable, _tree(DEFAULT), DEFAULT, ConfigError)


def _tree(path: Path) -> dict[str, Any]:
    return read_toml(path, "a table of powers and prices in TOML", ConfigError)


def _over(default_tree: dict[str, Any], user_tree: dict[str, Any]) -> dict[str, Any]:
    """Return the default tree with the user's values in place; a GPU with a purchase price loses its rent."""
    merged = dict(default_tree)
    for key, value in user_tree.items():
        under = default_tree.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            if "usd" in value:
                under = {name: number for name, number in under.items() if name != "usd_per_hour"}
            merged[key] = _over(under, value)
        else:
            merged[key] = value
    return merged


def documentation() -> str:
    """Return a Markdown table with a row per number: value, plausible range, and source."""
    table = read_table()
    lines = ["| number | value | range | how | from |", "| --- | --- | --- | --- | --- |"]
    for path, value in numbers(table):
        basis, _, text = table.sources[path].partition(": ")
        bounds = table.ranges.get(path)
        between = f"{bounds[0]:g} to {bounds[1]:g}" if bounds else ""
        lines.append(f"| `{path}` | {value:g} | {between} | {basis} | {text} |")
    return "\n".join(lines) + "\n"


def numbers(table: EnergyTable) -> Iterator[tuple[str, float]]:
    """Yield the path and value of each number of a table, except the rates that other numbers refer to."""
    tree = table.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True, exclude={"sources", "ranges"})
    yield from _leaves(tree, "")


def _leaves(tree: dict[str, Any], path: str) -> Iterator[tuple[str, float]]:
    """Yield the dotted path, which begins with `path`, and value of each number of a tree."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{key}.")
        elif key != "rate":
            yield f"{path}{key}", float(value)
