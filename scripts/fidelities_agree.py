"""Collectives alone on machines: closed forms, flows and packets, and where they differ, as Markdown tables.

    python scripts/fidelities_agree.py [MACHINE ...] [--limit PERCENT] [--packets COUNT] [--messages COUNT]

Every algorithm of every kind of collective runs among all NPUs of a machine at several sizes:

- alone on ports of its own, where nothing contends, as packets and as flows (`idle packets`, `idle flows`),
- on the machine's fabric, as packets and as flows (`packets`, `flows`), where its messages may share links,
- by the formula of the algorithm (`formula`).

Packets are simulated up to --packets (2,000,000) of a collective, flows up to --messages (100,000). The first table has
the cases of which two models differ by --limit (2) % or more, with the differences from the closed form that `nadi
collective` prints. The second has the largest differences of each algorithm and machine.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nadi import pdes
from nadi.configuration.run_file import collective_config
from nadi.errors import ConfigError
from nadi.inputs.units import format_bytes
from nadi.launching.progress import progress
from nadi.simulation.closed_forms import IsolatedCollectives, closed_form
from nadi.simulation.closed_forms.collective import formula_ps
from nadi.simulation.closed_forms.isolated import with_flows
from nadi.simulation.resolving import Resolver
from nadi.simulation.run import run_program
from nadi.studies.collectives.measuring import CollectiveCase, choose_algorithms
from nadi.studies.collectives.options import sizes_of
from nadi.topologies import Graph
from nadi.workload import KINDS, Program, WorkloadError
from nadi.workload.collectives import choose
from nadi.workload.collectives.schedules import message_count, packet_count

MACHINES = ("dgx-a100:npus=8", "dgx-h100:npus=8", "dgx-b200:npus=8", "dgx-h100:npus=16", "dgx-h100:npus=32")
SIZES = "8KiB,1MiB,64MiB,1GiB,8GiB"
PACKETS, MESSAGES = 2_000_000, 100_000  # maximum numbers of packets and of messages of a simulation: a few seconds each
IDLE_PACKETS, IDLE_FLOWS, FABRIC_PACKETS, FABRIC_FLOWS, FORMULA = MODELS = (
    "idle packets",
    "idle flows",
    "packets",
    "flows",
    "formula",
)
# pairs of models that agree: where nothing contends, and on one fabric
PAIRS = ((IDLE_FLOWS, IDLE_PACKETS), (FABRIC_FLOWS, FABRIC_PACKETS))


class Case(NamedTuple):
    """Times of a collective of one size."""

    machine: str  # name of the fabric
    kind: str  # kind of the collective
    algorithm: str  # algorithm with its parameters
    size_bytes: int  # bytes of the whole buffer
    closed_ps: float  # closed form that `nadi collective` prints
    played: bool  # whether packets gave the closed form; False = flows or a formula
    time_ps: dict[str, float]  # time of each model of MODELS that was affordable

    def error(self, model: str, reference: str) -> float | None:
        """Return how far the time of a model is from that of another one, as a fraction; None if one is not known.

        Args:
            model: Name of a model.
            reference: Name of the model whose time is right.
        """
        known = self.time_ps
        return known[model] / known[reference] - 1 if model in known and reference in known else None


def cases(
    machine: str,
    kind: str,
    sizes: str = SIZES,
    algorithm: str = "all",
    max_packets: int = PACKETS,
    max_messages: int = MESSAGES,
) -> Iterator[Case]:
    """Yield the cases of a kind on a machine; none if no algorithm performs it there.

    Args:
        machine: The specification of the fabric.
        kind: The kind of the collective.
        sizes: The sizes of the whole buffer, as `nadi collective` takes them.
        algorithm: The algorithms, as `nadi collective` takes them.
        max_packets: The maximum number of packets of a collective to simulate.
        max_messages: The maximum number of messages of a collective to simulate as flows.
    """
    idle = Resolver(collective_config(machine, [], {}), force=True).idle_fabric(1)
    graph, settings = idle.graph, idle.settings
    case, sizes_bytes = CollectiveCase(kind, None, idle.collectives), sizes_of(kind, sizes)
    try:
        names = choose_algorithms(graph, case, algorithm, sizes_bytes, lambda _: None).algorithms
    except (ConfigError, WorkloadError):
        return
    members = np.arange(graph.npus)
    for name in names:
        for size_bytes in sizes_bytes:
            program = case.program(graph, name, size_bytes)
            schedule = int(program.node_schedule[0])
            size = int(program.node_bytes[0])
            packets = packet_count(program.schedules, schedule, size, settings.mtu_bytes)
            messages = message_count(program.schedules, schedule)
            alone = graph, program, settings, choose(kind, name), schedule, members.tolist(), size
            isolated = IsolatedCollectives(max_packets, max_flows=max_messages)
            times_ps = {FORMULA: formula_ps(*alone[:3], kind, name, schedule, members, size, isolated)}
            if packets <= max_packets and messages <= max_packets:
                times_ps[IDLE_PACKETS] = isolated.time_ps(*alone)
                times_ps[FABRIC_PACKETS] = _finish_ps(graph, program, settings)
            times_ps[IDLE_FLOWS] = isolated.flows_ps(*alone)
            if messages <= max_messages:
                times_ps[FABRIC_FLOWS] = _finish_ps(graph, program, with_flows(settings))
            closed = closed_form(*alone[:3], kind, name, schedule, members, size, isolated)
            known = {model: time_ps for model, time_ps in times_ps.items() if time_ps}
            yield Case(machine, kind, name, size_bytes, closed.time_ps, closed.is_simulated, known)


def _finish_ps(graph: Graph, program: Program, settings: pdes.Settings) -> int:
    """Return the time in ps of a program on a fabric."""
    with progress(quiet=True) as display:
        return run_program(graph, program, settings, display).finish_time_ps


def _is_apart(case: Case, limit: float) -> bool:
    """Return whether two models that agree, or the closed form and a model, differ by a limit or more."""
    errors = [case.error(*pair) for pair in PAIRS]
    return any(error is not None and abs(error) >= limit for error in errors)


def _percent(errors: list[float]) -> str:
    """Return the range of errors in percent."""
    if not errors:
        return ""
    low, high = min(errors), max(errors)
    return f"{low:+.1%}" if f"{low:+.1%}" == f"{high:+.1%}" else f"{low:+.1%} to {high:+.1%}"


def main() -> None:
    """Print the tables of the machines that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", nargs="*", default=MACHINES, metavar="MACHINE")
    parser.add_argument("--limit", type=float, default=2.0, metavar="PERCENT")
    parser.add_argument("--packets", type=int, default=PACKETS, metavar="COUNT")
    parser.add_argument("--messages", type=int, default=MESSAGES, metavar="COUNT")
    parser.add_argument("--sizes", default=SIZES, metavar="SIZES")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="NAMES")
    parser.add_argument("--algorithm", default="all", metavar="NAMES")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[Case]] = {}
    count = apart = 0
    print(f"| machine | collective | size | closed form | {' | '.join(MODELS)} |\n|{' --- |' * (4 + len(MODELS))}")
    for machine in options.machines:
        for kind in options.kinds.split(","):
            how = machine, kind, options.sizes, options.algorithm, options.packets, options.messages
            for case in cases(*how):
                found.setdefault((machine, case.algorithm), []).append(case)
                count += 1
                if _is_apart(case, options.limit / 100):
                    apart += 1
                    closed = f"{'' if case.played else '~'}{case.closed_ps / 1e6:,.1f} us"
                    away = [
                        f"{case.time_ps[model] / case.closed_ps - 1:+.1%}" if model in case.time_ps else ""
                        for model in MODELS
                    ]
                    cells = machine, f"{kind}, {case.algorithm}", format_bytes(case.size_bytes), closed, *away
                    print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\nIn {apart} of {count} cases models that should agree differ by {options.limit:g} % or more.\n")
    print("| machine | algorithm | idle flows - idle packets | flows - packets | flows - closed form |")
    print("| --- | --- | --- | --- | --- |")
    for (machine, algorithm), of_algorithm in found.items():
        errors = [[case.error(*pair) for case in of_algorithm] for pair in PAIRS]
        contention = [
            case.time_ps[FABRIC_FLOWS] / case.closed_ps - 1 for case in of_algorithm if FABRIC_FLOWS in case.time_ps
        ]
        cells = [_percent([error for error in column if error is not None]) for column in errors]
        print(f"| {machine} | `{algorithm}` | {' | '.join([*cells, _percent(contention)])} |")


if __name__ == "__main__":
    main()
