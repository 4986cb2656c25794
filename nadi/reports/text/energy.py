"""Text of `nadi energy`."""

import math
from typing import Any

from rich.console import Group, RenderableType

from nadi.terminal import FittedTable, facts, name_column

_ENERGIES = (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6))
_POWERS = (("MW", 1e6), ("kW", 1e3), ("W", 1.0))


def energy_report(document: dict[str, Any]) -> RenderableType:
    """Return the document of RunBill.document as something that a rich Console prints."""
    jobs: list[RenderableType] = ["", energy_jobs_table(document)] if document.get("jobs") else []
    return Group(
        facts("energy and cost", energy_facts(document)),
        "",
        energy_parts_table(document),
        *jobs,
        *energy_notes(document),
    )


def energy_jobs_table(document: dict[str, Any]) -> FittedTable:
    """Return energy and cost of each job.

    Args:
        document: Energy and cost as a document.
    """
    columns = "GPUs", "energy", ("mean power", 1), "cost", ("per step", 2)
    table = FittedTable("energy by job", name_column("job"), *columns)
    for job in document["jobs"]:
        step = joules_text(job["step"]["energy_J"]) if "step" in job else "-"
        power = joules_text(job["mean_W"], _POWERS)
        table.add_row(
            job["job"], f"{job['npus']:,}", joules_text(job["energy_J"]), power, usd_text(job["cost_usd"]), step
        )
    return table


def energy_facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return name and text of energy and cost of the run, per step and per million tokens.

    Args:
        document: Energy and cost as a document.
    """
    terms = "rented, electricity in it" if document["is_rented"] else "owned, with electricity"
    cost = f"{usd_text(document['cost_usd'])} ({plain(document['gpu_hours'])} GPU hours, {terms})"
    rows = [
        ("energy", f"{joules_text(document['energy_J'])} ({plain(document['energy_J'] / 3.6e6)} kWh)"),
        ("mean power", joules_text(document["mean_W"], _POWERS)),
        ("cost", cost),
        ("electricity", usd_text(document["electricity_usd"])),
    ]
    if document["network_price_usd"]:
        price = usd_text(document["network_price_usd"])
        rows.append(("network", f"{usd_text(document['network_usd'])} of its price of {price}, in the cost"))
    for key, name in (("step", "per step"), ("million_tokens", "per million tokens")):
        if key in document:
            rows.append((name, f"{joules_text(document[key]['energy_J'])}, {usd_text(document[key]['cost_usd'])}"))
    return rows


def energy_parts_table(document: dict[str, Any]) -> FittedTable:
    """Return the energy by part.

    Args:
        document: Energy and cost as a document.
    """
    unit, joules = _unit(document["energy_J"], _ENERGIES)
    columns = ("count", 2), (f"static ({unit})", 1), (f"traffic ({unit})", 1), f"total ({unit})", "share"
    table = FittedTable("energy by part", name_column("part"), *columns)
    for row in document["parts"]:
        amounts = (f"{row[name] / joules:,.4g}" for name in ("static_J", "per_bit_J", "J"))
        table.add_row(row["part"], count_text(row), *amounts, f"{row['share']:.1%}")
    return table


def count_text(row: dict[str, Any]) -> str:
    """Return the number of a part that counts for the run, with the total number if that is larger.

    Args:
        row: Row of a part.
    """
    count = f"{row['count']:,.1f}".removesuffix(".0")
    return count if count == f"{row['of']:,}" else f"{count} of {row['of']:,}"


def energy_notes(document: dict[str, Any]) -> list[str]:
    """Return the sources of the numbers, and what is not counted.

    Args:
        document: Energy and cost as a document.
    """
    table = document["table_from"]
    source = f"{table} over the default table" if table else "the default table"
    return [f"GPU {document['gpu']}; powers and prices: {source} (nadi energy --show-table).", *document["notes"]]


def joules_text(joules: float, units: tuple[tuple[str, float], ...] = _ENERGIES) -> str:
    """Return an energy, or a quantity in other units, with four digits: 1.234 kJ.

    Args:
        joules: The energy in J.
        units: Names of units with their sizes, the largest first.
    """
    unit, size = _unit(joules, units)
    return f"{joules / size:,.4g} {unit}"


def usd_text(usd: float) -> str:
    """Return dollars: in cents from $100 on, else with four digits.

    Args:
        usd: Amount in dollars.
    """
    return f"${usd:,.2f}" if usd >= 100 else f"${plain(usd)}"


def plain(value: float) -> str:
    """Return a number with four digits and without an exponent: 0.00007188.

    Args:
        value: Number to print.
    """
    decimals = 3 - math.floor(math.log10(abs(value))) if value else 0
    text = f"{value:,.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _unit(value: float, units: tuple[tuple[str, float], ...]) -> tuple[str, float]:
    return next((unit for unit in units if value >= unit[1]), units[-1])
