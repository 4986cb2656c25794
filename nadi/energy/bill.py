"""What a run costs: joules by part, dollars by part.

Powers times times, and picojoules times bits; nothing is simulated here. Each directed link counts the port that sends
over it: what it draws all the time, and what it takes for each bit. The other direction counts the other port.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nadi.energy.table import EnergyTable, GpuCost, PortPower, choose

PS_PER_S = 1e12
J_PER_KWH = 3.6e6
_S_PER_HOUR = 3600.0
_HOURS_PER_YEAR = 8766.0
_BITS = 8
_J_PER_PJ = 1e-12

NPU_TIMES = ("compute", "communication", "memory", "idle")
PORTS: Mapping[str, tuple[str, ...]] = {
    "nic": ("nic", "transceiver"),
    "switch_port": ("switch_port", "transceiver"),
    "nvswitch_port": ("nvswitch_port",),
    "direct_port": ("direct_port",),
}
"""By what sends over a link, the rows of the table that count: NICs and switches have a transceiver, too."""
_NAMES = {
    "nic": "NICs",
    "transceiver": "transceivers",
    "switch_port": "switch ports",
    "nvswitch_port": "NVSwitch ports",
    "direct_port": "GPU ports",
}


class PortUse(NamedTuple):
    """Ports of one sort, together.

    Attributes:
        number: Number of ports that the run is charged for: its share of those that are there.
        rate_bps: Sum of the ports' rates in bits per second, each in proportion to the run's share of the port.
        tx_bytes: Bytes that the ports sent, headers included.
        present: Number of ports that are there.
    """

    number: float
    rate_bps: float
    tx_bytes: float
    present: int


class Usage(NamedTuple):
    """What of a run counts.

    Attributes:
        gpu: name of the GPU; "" = not known.
        npus: how many.
        finish_ps: how long all of them were taken.
        npu_ps: NPUs' time by one of NPU_TIMES, summed over the NPUs: npus * finish_ps in all.
        ports: by one of PORTS.
        steps: optimizer steps of the run; 0 = it has none.
        tokens: that all steps trained; 0 = not known.
    """

    gpu: str
    npus: int
    finish_ps: float
    npu_ps: Mapping[str, float]
    ports: Mapping[str, PortUse]
    steps: int = 0
    tokens: float = 0.0


class Item(NamedTuple):
    """Joules of one part.

    Attributes:
        name: of the part.
        number: Number of NPUs or ports that the run is charged for.
        present: Number of those that are there.
        static_J: drawn whatever it does; of NPUs: by what they do.
        per_bit_J: for bits that it sent.
    """

    name: str
    number: float
    present: int
    static_J: float  # noqa: N815 - joules
    per_bit_J: float = 0.0  # noqa: N815 - joules

    @property
    def joules(self) -> float:
        """All of it."""
        return self.static_J + self.per_bit_J


class Bill(NamedTuple):
    """Joules and dollars of a run.

    Attributes:
        gpu: the table's GPU that was taken.
        parts: of the machines.
        overhead_J: what the data centre adds, (PUE - 1) times the parts.
        electricity_usd: of parts and overhead.
        gpu_hours: NPUs times the run's time.
        gpu_usd: of these; where GPUs are rented, electricity is in it.
        is_rented: whether it is.
    """

    gpu: str
    parts: tuple[Item, ...]
    overhead_J: float  # noqa: N815 - joules
    electricity_usd: float
    gpu_hours: float
    gpu_usd: float
    is_rented: bool

    @property
    def joules(self) -> float:
        """Of the machines and the data centre around them."""
        return sum(part.joules for part in self.parts) + self.overhead_J

    @property
    def usd(self) -> float:
        """GPUs' hours, and electricity where that is not in them."""
        return self.gpu_usd + (0.0 if self.is_rented else self.electricity_usd)


def bill(usage: Usage, table: EnergyTable) -> Bill:
    """What a run costs by a table."""
    chosen = choose(table, usage.gpu)
    run_s = usage.finish_ps / PS_PER_S
    watts = {name: getattr(table.power, name) * chosen.cost.tdp_W for name in NPU_TIMES}
    npus = usage.npus, usage.npus
    parts = [Item(f"GPUs: {name}", *npus, usage.npu_ps[name] / PS_PER_S * watts[name]) for name in NPU_TIMES]
    parts.append(Item("hosts", *npus, table.host.W_per_gpu * usage.npus * run_s))
    for sort, ports in usage.ports.items():
        parts += [_port_part(row, getattr(table, row), ports, run_s) for row in PORTS[sort]]
    parts = _together(parts)
    machines = sum(part.joules for part in parts)
    overhead = (table.facility.pue - 1) * machines
    hours = usage.npus * run_s / _S_PER_HOUR
    return Bill(
        gpu=chosen.name,
        parts=tuple(parts),
        overhead_J=overhead,
        electricity_usd=(machines + overhead) / J_PER_KWH * table.facility.usd_per_kWh,
        gpu_hours=hours,
        gpu_usd=hours * usd_per_hour(chosen.cost),
        is_rented=chosen.cost.usd_per_hour is not None,
    )


def usd_per_hour(cost: GpuCost) -> float:
    """Of a GPU: its rent, or its price over the hours in which it works."""
    if cost.usd_per_hour is not None:
        return cost.usd_per_hour
    assert cost.usd is not None  # noqa: S101 - the table has one of the two
    assert cost.years is not None  # noqa: S101 - beside it
    return cost.usd / (cost.years * _HOURS_PER_YEAR * cost.used)


def document(usage: Usage, found: Bill) -> dict[str, Any]:
    """A bill for JSON; shares are of all joules."""
    joules = found.joules
    rows = [
        {
            "part": part.name,
            "count": part.number,
            "of": part.present,
            "static_J": part.static_J,
            "per_bit_J": part.per_bit_J,
            "J": part.joules,
            "share": part.joules / joules if joules else 0.0,
        }
        for part in (*found.parts, Item("data centre (PUE)", 1, 1, found.overhead_J))
    ]
    whole = {
        "gpu": found.gpu,
        "npus": usage.npus,
        "time_s": usage.finish_ps / PS_PER_S,
        "energy_J": joules,
        "mean_W": joules / (usage.finish_ps / PS_PER_S) if usage.finish_ps else 0.0,
        "parts": rows,
        "gpu_hours": found.gpu_hours,
        "gpu_usd": found.gpu_usd,
        "electricity_usd": found.electricity_usd,
        "is_rented": found.is_rented,
        "cost_usd": found.usd,
    }
    if usage.steps:
        whole["step"] = {"steps": usage.steps, "energy_J": joules / usage.steps, "cost_usd": found.usd / usage.steps}
    if usage.tokens:
        per_million = 1e6 / usage.tokens
        whole["million_tokens"] = {"energy_J": joules * per_million, "cost_usd": found.usd * per_million}
    return whole


def _port_part(name: str, port: PortPower, ports: PortUse, run_s: float) -> Item:
    static = port.W * ports.rate_bps / port.rate_bps * run_s
    return Item(_NAMES[name], ports.number, ports.present, static, port.pJ_per_bit * _J_PER_PJ * _BITS * ports.tx_bytes)


def _together(parts: list[Item]) -> list[Item]:
    """Parts of one name as one: transceivers of NICs and of switches."""
    found: dict[str, Item] = {}
    for part in parts:
        had = found.get(part.name, Item(part.name, 0, 0, 0.0))
        found[part.name] = Item(
            part.name,
            had.number + part.number,
            had.present + part.present,
            had.static_J + part.static_J,
            had.per_bit_J + part.per_bit_J,
        )
    return list(found.values())
