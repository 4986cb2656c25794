"""Energy and cost of a run by part of the machine, from a small table of powers and prices that users can replace.

`table.toml` is the default table and gives the source of each number. Energy is power times time, plus picojoules times
bits; nothing is simulated here. A directed link counts the port that sends over it: the port's constant power, and its
energy per bit. The opposite link counts the other port.

A fabric may be a part of a larger one. The leaf switches of one host in a SuperPOD, for example, serve other hosts
through the same links to the spines. Therefore a port between switches of different tiers counts only by the share
that the run's NPUs can fill: the rate from below divided by the rate of all ports to the tier above, at most 1.
"""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from nadi.errors import ConfigError
from nadi.inputs.documents import checked, read_toml
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_S, parse_link_rate
from nadi.topologies import links_to_npus, passing_links

DEFAULT_TABLE = Path(__file__).with_name("table.toml")
# Words that a source may begin with: how its number was obtained
BASES = ("published", "measured", "derived", "assumed")
OTHER_GPU = "other"  # The table's GPU for runs whose GPU is unknown or not in the table

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


def gpu_cost(table: EnergyTable, gpu: str) -> tuple[str, GpuCost]:
    """Return name and cost of the table's GPU of this name, or OTHER if it lacks it; the name of a path is its stem.

    A parameter `power` of the GPU replaces the table's power.

    Args:
        gpu: The name of the GPU, or the path of the file that describes it; both perhaps with parameters.
        table: Powers and prices of devices.
    """
    base, _, parameters = gpu.partition(":")
    name = Path(base).stem.lower() if gpu else OTHER_GPU
    key = {key.lower(): key for key in table.gpus}.get(name, OTHER_GPU)
    cost = table.gpus[key]
    if "power" not in parameters:
        return key, cost
    from nadi.workload.compute import find_gpu

    return key, cost.model_copy(update={"tdp_W": find_gpu(gpu).power_watts})


def read_table(path: Path | None = None) -> EnergyTable:
    """Return the default table, with the values of a user's table in place of its own; ConfigError if it is wrong.

    Args:
        path: The user's file of powers and prices; None for the default table.
    """
    if path is None:
        return _default()
    return checked(EnergyTable, _over(_tree(DEFAULT_TABLE), _tree(path)), path, ConfigError)


@cache
def _default() -> EnergyTable:
    return checked(EnergyTable, _tree(DEFAULT_TABLE), DEFAULT_TABLE, ConfigError)


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


def table_documentation() -> str:
    """Return a Markdown table with a row per number: value, plausible range, and source."""
    table = read_table()
    lines = ["| number | value | range | how | from |", "| --- | --- | --- | --- | --- |"]
    for path, value in table_numbers(table):
        basis, _, text = table.sources[path].partition(": ")
        bounds = table.ranges.get(path)
        between = f"{bounds[0]:g} to {bounds[1]:g}" if bounds else ""
        lines.append(f"| `{path}` | {value:g} | {between} | {basis} | {text} |")
    return "\n".join(lines) + "\n"


def table_numbers(table: EnergyTable) -> Iterator[tuple[str, float]]:
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


J_PER_KWH = 3.6e6
_S_PER_HOUR = 3600.0
_HOURS_PER_YEAR = 8766.0
_J_PER_PJ = 1e-12

NPU_TIMES = ("compute", "communication", "memory", "idle")
# Rows of the table that count for each sort of sending port: NICs and switches have a transceiver as well
PORTS: Mapping[str, tuple[str, ...]] = {
    "nic": ("nic", "transceiver"),
    "switch_port": ("switch_port", "transceiver"),
    "nvswitch_port": ("nvswitch_port",),
    "direct_port": ("direct_port",),
}
# Names of the rows of the table that concern ports
_NAMES = {"nic": "NICs", "transceiver": "transceivers", "switch_port": "switch ports"}
_NAMES |= {"nvswitch_port": "NVSwitch ports", "direct_port": "GPU ports"}


class PortUse(NamedTuple):
    """The ports of one sort that a run uses."""

    number: float  # Number of ports that the run is charged for: its share of those that are there
    rate_bps: float  # Sum of the ports' rates in bits per second, each in proportion to the run's share of the port
    tx_bytes: float  # Bytes that the ports sent, headers included
    present: int  # Number of ports that are there


class Usage(NamedTuple):
    """The quantities of a run that its energy and cost depend on."""

    gpu: str  # Name of the GPU; "" = unknown
    npus: int  # Number of NPUs
    finish_ps: float  # Time in picoseconds for which the run occupies all NPUs
    # NPU time in picoseconds by activity (NPU_TIMES), summed over the NPUs; the total is npus * finish_ps
    npu_ps: Mapping[str, float]
    ports: Mapping[str, PortUse]  # Ports that the run uses, by sort (PORTS)
    steps: int = 0  # Number of optimizer steps; 0 = the run is not a training
    tokens: float = 0.0  # Number of tokens trained in all steps; 0 = unknown


class Item(NamedTuple):
    """The energy of one part of the machine."""

    name: str  # Name of the part, as tables print it
    number: float  # Number of NPUs or ports that the run is charged for
    present: int  # Number of NPUs or ports that the fabric has
    # Energy in joules that does not depend on traffic; for NPUs, the energy of one activity
    static_J: float  # noqa: N815 - joules
    # Energy in joules of the bits that the part sent
    per_bit_J: float = 0.0  # noqa: N815 - joules

    @property
    def joules(self) -> float:
        """Total energy in joules."""
        return self.static_J + self.per_bit_J


class Bill(NamedTuple):
    """The energy and cost of a run."""

    gpu: str  # Name of the table's GPU whose powers and prices apply
    parts: tuple[Item, ...]  # Energy of each part of the machines
    # Energy in joules that the data centre adds: (PUE - 1) times the sum of the parts
    overhead_J: float  # noqa: N815 - joules
    electricity_usd: float  # Price in dollars of the energy of parts and overhead
    gpu_hours: float  # Number of NPUs times the run's time in hours
    gpu_usd: float  # Price in dollars of the GPU hours; it includes electricity if GPUs are rented
    is_rented: bool  # Whether the table's price of the GPU is a rent per hour
    network_price_usd: float = 0.0  # Purchase price in dollars of the ports that the run is charged for
    network_usd: float = 0.0  # Share of that price for the time of the run, in dollars

    @property
    def joules(self) -> float:
        """Energy in joules of the machines and of the data centre around them."""
        return sum(part.joules for part in self.parts) + self.overhead_J

    @property
    def usd(self) -> float:
        """Cost in dollars: GPU hours, electricity unless the rent includes it, and the network if it has a price."""
        return self.gpu_usd + (0.0 if self.is_rented else self.electricity_usd) + self.network_usd


def bill(usage: Usage, table: EnergyTable) -> Bill:
    """Return the energy and cost of a run according to a table.

    Args:
        usage: The work of the run: times, bytes and busy parts by kind of device.
        table: Powers and prices of devices.
    """
    name, cost = gpu_cost(table, usage.gpu)
    run_s = usage.finish_ps / PS_PER_S
    watts = {activity: getattr(table.power, activity) * cost.tdp_W for activity in NPU_TIMES}
    npus = usage.npus, usage.npus
    parts = [
        Item(f"GPUs: {activity}", *npus, usage.npu_ps[activity] / PS_PER_S * power) for activity, power in watts.items()
    ]
    parts.append(Item("hosts", *npus, table.host.W_per_gpu * usage.npus * run_s))
    for sort, ports in usage.ports.items():
        parts += [_port_part(row, getattr(table, row), ports, run_s) for row in PORTS[sort]]
    parts = _sum_by_name(parts)
    machines = sum(part.joules for part in parts)
    # PUE: energy of the data centre over energy of its machines
    overhead = (table.facility.pue - 1) * machines
    hours = usage.npus * run_s / _S_PER_HOUR
    price_usd = network_price_usd(usage.ports, table)
    life = table.network_life
    life_s = life.years * _HOURS_PER_YEAR * life.used * _S_PER_HOUR if life else math.inf
    return Bill(
        gpu=name,
        parts=tuple(parts),
        overhead_J=overhead,
        electricity_usd=(machines + overhead) / J_PER_KWH * table.facility.usd_per_kWh,
        gpu_hours=hours,
        gpu_usd=hours * usd_per_hour(cost),
        is_rented=cost.usd_per_hour is not None,
        network_price_usd=price_usd,
        network_usd=price_usd * run_s / life_s,
    )


def network_price_usd(ports: Mapping[str, PortUse], table: EnergyTable) -> float:
    """Return the purchase price in dollars of ports, by sort, with their transceivers; 0 if the table has no prices."""
    return sum(
        (getattr(table, row).usd or 0.0) * used.rate_bps / getattr(table, row).rate_bps
        for sort, used in ports.items()
        for row in PORTS[sort]
    )


def usd_per_hour(cost: GpuCost) -> float:
    """Return dollars per hour of a GPU: its rent, or its price divided by its working hours.

    Args:
        cost: The rent, or price and lifetime, of the GPU.
    """
    if cost.usd_per_hour is not None:
        return cost.usd_per_hour
    assert cost.usd is not None  # noqa: S101 - the table has one of the two
    assert cost.years is not None  # noqa: S101 - beside it
    return cost.usd / (cost.years * _HOURS_PER_YEAR * cost.used)


def bill_document(usage: Usage, costs: Bill) -> dict[str, Any]:
    """Return a bill as a JSON document; `share` is a part's share of the total energy.

    Args:
        usage: The work of the run, from which the bill follows.
        costs: Energy and cost of each part.
    """
    joules = costs.joules
    rows = []
    for part in (*costs.parts, Item("data centre (PUE)", 1, 1, costs.overhead_J)):
        energies = {"static_J": part.static_J, "per_bit_J": part.per_bit_J, "J": part.joules}
        share = part.joules / joules if joules else 0.0
        rows.append({"part": part.name, "count": part.number, "of": part.present, **energies, "share": share})
    tree = {
        "gpu": costs.gpu,
        "npus": usage.npus,
        "time_s": usage.finish_ps / PS_PER_S,
        "energy_J": joules,
        "mean_W": joules / (usage.finish_ps / PS_PER_S) if usage.finish_ps else 0.0,
        "parts": rows,
        "gpu_hours": costs.gpu_hours,
        "gpu_usd": costs.gpu_usd,
        "electricity_usd": costs.electricity_usd,
        "network_price_usd": costs.network_price_usd,
        "network_usd": costs.network_usd,
        "is_rented": costs.is_rented,
        "cost_usd": costs.usd,
    }
    if usage.steps:
        tree["step"] = {"steps": usage.steps, "energy_J": joules / usage.steps, "cost_usd": costs.usd / usage.steps}
    if usage.tokens:
        per_million = 1e6 / usage.tokens
        tree["million_tokens"] = {"energy_J": joules * per_million, "cost_usd": costs.usd * per_million}
    return tree


def _port_part(port_sort: str, port_power: PortPower, port_use: PortUse, run_s: float) -> Item:
    """Return the energy of the ports of a sort during `run_s` seconds."""
    static_joules = port_power.W * port_use.rate_bps / port_power.rate_bps * run_s
    bit_joules = port_power.pJ_per_bit * _J_PER_PJ * BITS_PER_BYTE * port_use.tx_bytes
    return Item(_NAMES[port_sort], port_use.number, port_use.present, static_joules, bit_joules)


def _sum_by_name(parts: list[Item]) -> list[Item]:
    """Return the parts with those of one name added up, such as the transceivers of NICs and of switches."""
    sums: dict[str, Item] = {}
    for part in parts:
        total = sums.get(part.name, Item(part.name, 0, 0, 0.0))
        number, present = total.number + part.number, total.present + part.present
        joules, bit_joules = total.static_J + part.static_J, total.per_bit_J + part.per_bit_J
        sums[part.name] = Item(part.name, number, present, joules, bit_joules)
    return list(sums.values())


_Numbers = NDArray[np.integer]
_Mask = NDArray[np.bool_]


def port_uses(
    src_of_link: _Numbers,
    dst_of_link: _Numbers,
    is_npu: _Mask,
    is_nvswitch: _Mask,
    rate_bps: NDArray[np.number],
    tx_bytes: NDArray[np.number],
) -> tuple[dict[str, PortUse], int]:
    """Return the sending ports by sort, and the number of switches that do not count.

    Ports of NPUs, and the ports of switches to NPUs, count fully. Ports of switches that serve no NPU and sent nothing
    do not count. Other ports count by `shares`. What a server passes on (`topologies.passing_links`) are bytes of its
    NICs and of the ports at their other ends, which count once. Arrays are bool[nodes], and ends, rate and bytes with
    headers of links.

    Args:
        src_of_link: int[links], the sending node of each link.
        dst_of_link: int[links], the receiving node of each link.
        is_npu: bool[nodes], whether each node is an NPU.
        is_nvswitch: bool[nodes], whether each node is an NVSwitch.
        rate_bps: The rate of each link in bits per second, [links].
        tx_bytes: The bytes that each link sent, [links].
    """
    nodes = len(is_npu)
    active = is_npu | (np.bincount(src_of_link, tx_bytes, nodes) > 0)
    # a switch counts if it sends, or has a port to an NPU
    active |= np.bincount(src_of_link, is_npu[dst_of_link], nodes) > 0
    sorts = {
        "nic": is_npu[src_of_link] & ~is_npu[dst_of_link] & ~is_nvswitch[dst_of_link],
        "direct_port": is_npu[src_of_link] & (is_npu[dst_of_link] | is_nvswitch[dst_of_link]),
        "nvswitch_port": is_nvswitch[src_of_link] & active[src_of_link],
        "switch_port": ~is_npu[src_of_link] & ~is_nvswitch[src_of_link] & active[src_of_link],
    }
    passing = passing_links(src_of_link, dst_of_link, is_npu, is_nvswitch)
    passed = {"nic": passing & is_nvswitch[src_of_link], "switch_port": passing & is_nvswitch[dst_of_link]}
    share = shares(src_of_link, dst_of_link, is_npu, rate_bps)
    uses = {}
    for sort, mask in sorts.items():
        own = mask & ~passing
        if own.any():
            number, rate, sent = (float(values[own].sum()) for values in (share, share * rate_bps, tx_bytes))
            sent += float(tx_bytes[passed[sort]].sum()) if sort in passed else 0.0
            uses[sort] = PortUse(number, rate, sent, int(own.sum()))
    sends = np.bincount(src_of_link, minlength=nodes) > 0
    return uses, int((sends & ~active).sum())


def shares(src: _Numbers, dst: _Numbers, is_npu: _Mask, rate_bps: NDArray[np.number]) -> NDArray[np.float64]:
    """Return the share of each link that the fabric's NPUs can fill, float64[links] from 0 to 1.

    The tier of a switch is its distance in links from the nearest NPU. Links of NPUs and links between switches of one
    tier have share 1. The share of a link between a switch and the tier above is the rate of the switch's links from
    below, each times its own share, divided by the rate of all the switch's links to the tier above. The arguments are
    those of `port_uses`.

    Args:
        src: int[links], the sending node of each link.
        dst: int[links], the receiving node of each link.
        is_npu: bool[nodes], whether each node is an NPU.
        rate_bps: The rate of each link in bits per second, [links].
    """
    nodes = len(is_npu)
    tier = links_to_npus(src, dst, is_npu)
    share = np.ones(len(src), np.float64)
    rises, falls = tier[src] < tier[dst], tier[src] > tier[dst]
    # upwards from the NPUs: a switch can fill its ports up as far as traffic from below allows
    for level in range(1, int(tier.max(initial=0))):
        up = rises & (tier[src] == level)
        below_bps = np.bincount(src, np.where(falls & (tier[src] == level), share * rate_bps, 0.0), nodes)
        above_bps = np.bincount(src, np.where(up, rate_bps, 0.0), nodes)
        switch_share = np.minimum(1.0, below_bps / np.maximum(above_bps, 1.0))
        down = falls & (tier[dst] == level)
        share[up] = switch_share[src[up]]
        share[down] = switch_share[dst[down]]
    return share
