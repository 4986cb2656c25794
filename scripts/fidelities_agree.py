"""Collectives on idle machines, where nothing else contends: closed form, flows and packets, as a Markdown table.

    python scripts/fidelities_agree.py [MACHINE ...] [--limit PERCENT] [--packets SIZE]

Every algorithm and kind of collective runs among all NPUs of a machine from 8 KiB to 8 GiB: as flows, and as packets up
to --packets (64 MiB). A row is a case in which some time is --limit (2) % or more away from the closed form of packets;
the last line counts all cases.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from nadi.api.studies import CollectiveRequest, time_collective
from nadi.errors import ConfigError
from nadi.inputs.units import format_bytes, parse_bytes
from nadi.launching.progress import progress
from nadi.launching.workers import SERIAL
from nadi.studies.collectives.measuring import SweepRow
from nadi.studies.collectives.options import parse_sizes
from nadi.workload import WorkloadError

MACHINES = ("dgx-a100:npus=8", "dgx-h100:npus=8", "dgx-b200:npus=8", "dgx-h100:npus=16", "dgx-h100:npus=32")
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
SIZES = "8KiB:8GiB:x8"
MODELS = ('"flow"', '"packet"')


class Case(NamedTuple):
    """Times of a collective of one size."""

    machine: str  # name of the fabric
    kind: str  # kind of the collective
    algorithm: str  # algorithm and its choice
    size_bytes: int  # bytes of the whole buffer
    closed_ps: float  # closed form, by packets
    played: bool  # whether the closed form was played; False = a formula
    error: dict[str, float]  # by model, how far its time is from the closed form, as a fraction


def cases(
    machine: str, kind: str, sizes: str = SIZES, packets_bytes: int = 1 << 26, algorithm: str = "all"
) -> list[Case]:
    """Return the cases of a kind on a machine; none if no algorithm performs it there.

    Args:
        machine: The specification of the fabric.
        kind: The kind of the collective.
        sizes: The sizes of the whole buffer, as `nadi collective` takes them.
        packets_bytes: The largest size that packets simulate.
        algorithm: The algorithms, as `nadi collective` takes them.
    """
    found: dict[tuple[str, int], Case] = {}
    for model in MODELS:
        for row in _rows(machine, kind, sizes, algorithm, model, packets_bytes):
            name = f"{row.algorithm} ({row.variant})" if row.variant else row.algorithm
            key = name, row.bytes
            if key not in found:
                found[key] = Case(machine, kind, *key, row.closed_form_ps, row.closed_form_played, {})
            found[key].error[row.model] = row.time_ps / found[key].closed_ps - 1
    return list(found.values())


def _rows(machine: str, kind: str, sizes: str, algorithm: str, model: str, packets_bytes: int) -> Iterator[SweepRow]:
    """Yield the rows of a model."""
    wanted = [size for size in parse_sizes(sizes) if model != MODELS[-1] or size <= packets_bytes]
    asked = ",".join(f"{size}B" for size in wanted)
    request = CollectiveRequest(kind, machine, asked, None, "", [algorithm], [f"network.fidelity={model}"])
    try:
        yield from time_collective(request, SERIAL, lambda: progress(quiet=True)).rows
    except (ConfigError, WorkloadError):
        return


def main() -> None:
    """Print the table of the machines that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", nargs="*", default=MACHINES, metavar="MACHINE")
    parser.add_argument("--limit", type=float, default=2.0, metavar="PERCENT")
    parser.add_argument("--packets", default="64MiB", metavar="SIZE")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="NAMES")
    options = parser.parse_args()
    print("| machine | collective | size | closed form | away from it |\n| --- | --- | --- | --- | --- |")
    count = apart = 0
    for machine in options.machines:
        for kind in options.kinds.split(","):
            for case in cases(machine, kind, packets_bytes=parse_bytes(options.packets)):
                count += len(case.error)
                far = {model: error for model, error in case.error.items() if abs(error) >= options.limit / 100}
                apart += len(far)
                if far:
                    away = ", ".join(f"{model}: {error:+.1%}" for model, error in case.error.items())
                    closed = f"{'' if case.played else '~'}{case.closed_ps / 1e6:,.1f} us"
                    cells = machine, f"{kind}, {case.algorithm}", format_bytes(case.size_bytes), closed, away
                    print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{apart} of {count} times are {options.limit:g} % or more away from the closed form")


if __name__ == "__main__":
    main()
