"""Compares Nadi with uet-htsim's published permutations of 8,192 hosts.

Command: python scripts/uet_htsim.py [ROW ...]

The rows are those of htsim/sim/datacenter/results (experiment1_*) of ultraethernet/uet-htsim for messages of 1 MB. Each
row runs `nadi htsim` with htsim's own connection matrix, topology and options, and prints the longest completion time
and the retransmissions of Nadi beside htsim's. NSCC was published twice: on 2024-07-30, and on 2024-08-02 after its
parameters had been corrected (files *_2.txt); both are printed. Without $NADI_SHARED (default: ../shared), where the
files are, the script prints that it skips. A row takes 15 to 60 s of CPU time.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FABRICS = Path(os.environ.get("NADI_SHARED", ROOT.parent / "shared")) / "data/fabrics/uet"
OPTIONS = "-linkspeed 400000 -q 100 -ecn 25 75 -cwnd 150"
OPTIONS_800G = "-linkspeed 800000 -q 200 -ecn 50 150 -cwnd 300"
NSCC = "-sender_cc_only"
# htsim's published runs at 4:1 had its first oversubscribed control: docs/explanation/fabrics/ultra-ethernet.md
RCCC = "-receiver_cc_only -force_disable_oversubscribed_cc"


class Published(NamedTuple):
    """A row of uet-htsim's results: topology, options, and by number of paths (us, retransmissions)."""

    topology: str
    options: str
    found: dict[int, tuple[float, int]]
    later: dict[int, tuple[float, int]] = {}  # noqa: RUF012 - not changed; of 2024-08-02


ROWS = {
    "nscc 1:1": Published(
        "leaf_spine_8192_400g",
        f"{OPTIONS} {NSCC}",
        {32: (38.7065, 115), 64: (36.1797, 0), 128: (35.3925, 0)},
        {32: (37.1783, 0), 64: (33.926, 0), 128: (34.2567, 0)},
    ),
    "rccc 1:1": Published(
        "leaf_spine_8192_400g", f"{OPTIONS} {RCCC}", {32: (38.3742, 72), 64: (36.5572, 0), 128: (36.308, 0)}
    ),
    "nscc 4:1": Published(
        "leaf_spine_8192_400g_4_to_1",
        f"{OPTIONS} {NSCC}",
        {32: (188.805, 838_369), 64: (177.107, 843_005), 128: (188.297, 834_934)},
        {32: (119.811, 854_027), 64: (119.703, 872_753), 128: (117.409, 858_856)},
    ),
    "rccc 4:1": Published(
        "leaf_spine_8192_400g_4_to_1",
        f"{OPTIONS} {RCCC}",
        {32: (116.332, 3_507_678), 64: (123.675, 3_507_373), 128: (119.533, 3_508_184)},
    ),
    "nscc failed": Published(
        "leaf_spine_8192_400g",
        f"{OPTIONS} {NSCC} -failed 1",
        {32: (41.9739, 10_842), 64: (44.6124, 11_857), 128: (45.3936, 13_909)},
    ),
    "rccc failed": Published(
        "leaf_spine_8192_400g",
        f"{OPTIONS} {RCCC} -failed 1",
        {32: (43.3924, 10_854), 64: (45.133, 11_900), 128: (46.2889, 13_901)},
    ),
    "nscc 800G": Published(
        "leaf_spine_8192_800g",
        f"{OPTIONS_800G} {NSCC}",
        {32: (25.2974, 0), 64: (22.8967, 0), 128: (22.1351, 0)},
        {32: (25.0993, 0), 64: (23.2263, 0), 128: (22.1422, 0)},
    ),
}


def run(row: Published, paths: int) -> tuple[float, int]:
    """Return the longest completion time in us and the retransmissions of a row in Nadi.

    Args:
        row: The published row.
        paths: Number of paths of a flow.
    """
    with tempfile.TemporaryDirectory() as folder:
        matrix, topology = FABRICS / "perm_8192n_8192c_1MB.cm", FABRICS / f"{row.topology}.topo"
        command = [sys.executable, "-m", "nadi", "htsim", "-tm", matrix, "-topo", topology, "-paths", str(paths)]
        command += [*row.options.split(), "--quiet", "--out", f"{folder}/run"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - own words
        longest = re.search(r"FCT spread \S+ -> (\S+) us", done.stdout + done.stderr)
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
        return float(longest[1] if longest else "nan"), int(summary["retransmitted_packets"])


def main(names: list[str]) -> None:
    """Print the rows of these names, or all.

    Args:
        names: Names of rows, such as "nscc 4:1"; or with paths, "nscc 4:1/32".
    """
    if not FABRICS.is_dir():
        sys.stdout.write(f"skipped: no files of htsim in {FABRICS}\n")
        return
    sys.stdout.write("| row | paths | published us | Nadi us | difference | sent again | Nadi | difference |\n")
    sys.stdout.write("| --- | --- | --- | --- | --- | --- | --- | --- |\n")
    for name, row in ROWS.items():
        for paths in row.found:
            if not names or name in names or f"{name}/{paths}" in names:
                ours_us, ours = run(row, paths)
                published = [of[paths] for of in (row.found, row.later) if of]
                cells = (
                    [f"{us:.2f}" for us, _ in published],
                    [f"{ours_us:.2f}"],
                    [f"{ours_us / us - 1:+.1%}" for us, _ in published],
                    [f"{again:,}" for _, again in published],
                    [f"{ours:,}"],
                    [f"{ours / again - 1:+.1%}" if again else "" for _, again in published],
                )
                sys.stdout.write(f"| {name} | {paths} | {' | '.join('; '.join(cell) for cell in cells)} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
