"""Compares Nadi with spcl's simulator of "Spritz" on a dragonfly (p 4, a 8, h 4) and a slim fly (p 7, q 9).

Command: python scripts/spritz.py [FABRIC/TRAFFIC ...]

Each row runs `nadi htsim` with the simulator's own matrix, topology and options, and prints mean and longest completion
time of messages of 4 MiB and the packets sent again, those of the simulator in brackets, which was run unchanged
(jhlxp/eth-htsim-ocs-eps 4ea994d). Without $NADI_SHARED (default: ../shared), where the files are, the script prints
that it skips. A row takes 5 to 30 s of CPU time.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = Path(os.environ.get("NADI_SHARED", ROOT.parent / "shared")) / "data/fabrics/spritz"
# packets of 4,160 bytes with the header, queues of 88 packets, marks from 0.2 to 0.8 of them, rounded down
OPTIONS = "-mtu 4160 -q 88 -ecn 17 70 -load_balancing_algo ecmp --quiet"
TOPOLOGIES = {"dragonfly": "df/dragonfly.topo", "slim fly": "sf/slimfly.topo"}
RULES = ("minimal", "valiant", "ugal-l", "ugal-l-again")  # of Nadi; the simulator's UGAL_L is the last one
# mean and longest completion in us, packets sent again: MINIMAL, VALIANT, UGAL_L
PUBLISHED = {
    "dragonfly/permutation_global": ((192.1, 523.5, 28_969), (181.9, 243.8, 7_578), (155.6, 281.0, 16_834)),
    "dragonfly/adv_i5": ((2554.2, 2753.7, 113_757), (338.6, 460.1, 87_076), (765.0, 1165.4, 177_136)),
    "slim fly/permutation_global": ((185.7, 433.9, 11_411), (189.6, 268.7, 2_262), (143.6, 267.6, 1_657)),
    "slim fly/adv_all": ((401.1, 614.5, 18_639), (128.6, 208.1, 4_182), (225.4, 438.0, 22_886)),
}


def run(row: str, rule: str) -> tuple[float, float, int]:
    """Return mean and longest completion time in us, and the packets sent again, of a row in Nadi.

    Args:
        row: Fabric and traffic, a key of PUBLISHED.
        rule: Routing rule.
    """
    fabric, _, traffic = row.partition("/")
    topology = FILES / TOPOLOGIES[fabric]
    command = [sys.executable, "-m", "nadi", "htsim", "-tm", topology.parent / f"{traffic}_4MiB.cm"]
    command += ["-topo", topology, *OPTIONS.split(), "--set", f"network.routing={rule}", "--json"]
    # it chooses a packet's port before the latency of the switch
    command += ["--set", "network.routing_delay=500ns"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - own words
    times = re.search(r"FCT spread \S+ -> (\S+) us, ratio \S+, mean (\S+) us", done.stderr)
    longest_us, mean_us = times.groups() if times else ("nan", "nan")
    return float(mean_us), float(longest_us), int(json.loads(done.stdout)["retransmitted_packets"])


def main(names: list[str]) -> None:
    """Print the rows of these names, or all.

    Args:
        names: Names of rows, such as "slim fly/adv_all", or with a rule, "slim fly/adv_all/valiant".
    """
    if not FILES.is_dir():
        sys.stdout.write(f"skipped: no files of the simulator in {FILES}\n")
        return
    sys.stdout.write("| fabric, traffic | rule | mean us | difference | longest us | sent again |\n")
    sys.stdout.write("| --- | --- | --- | --- | --- | --- |\n")
    for row, published in PUBLISHED.items():
        for rule, (mean_us, longest_us, again) in zip(RULES, (*published, published[-1]), strict=True):
            if not names or row in names or f"{row}/{rule}" in names:
                ours_us, ours_longest_us, ours_again = run(row, rule)
                cells = [f"{ours_us:.1f} ({mean_us})", f"{ours_us / mean_us - 1:+.1%}"]
                cells += [f"{ours_longest_us:.1f} ({longest_us})", f"{ours_again:,} ({again:,})"]
                sys.stdout.write(f"| {row} | {rule} | {' | '.join(cells)} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
