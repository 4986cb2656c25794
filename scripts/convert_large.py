"""How much memory and time conversions of many NPUs take.

    python scripts/convert_large.py --npus 16384 --nodes 1000

Writes a GOAL schedule of that many ranks, each with so many operations (messages in a ring between computations),
converts it to Chakra traces, these to JSON and that to GOAL, and prints for each the time, the size of what was made
and the most memory that the process had, which must not grow with the NPUs.
"""

import argparse
import resource
import shutil
import tempfile
import time
from pathlib import Path

from et.formats import formats


def goal_lines(npus: int, nodes: int):
    """A schedule: each rank computes, sends to the next and receives from the one before, again and again."""
    yield f"num_ranks {npus}\n"
    for rank in range(npus):
        lines = [f"rank {rank} {{\n"]
        for i in range(0, nodes, 3):
            lines.append(f"c{i}: calc {2000 + i}\n")
            lines.append(f"s{i}: send 65536b to {(rank + 1) % npus} tag {i}\ns{i} requires c{i}\n")
            lines.append(f"r{i}: recv 65536b from {(rank - 1) % npus} tag {i}\n")
            if i:
                lines.append(f"c{i} requires r{i - 3}\n")
        lines.append("}\n")
        yield "".join(lines)


def converted(source: str, target: str, given: list[Path], out: Path) -> None:
    """Convert, and print what it took."""
    out.mkdir()
    begin = time.process_time()
    formats()[target].write(formats()[source].read(given, {}), out, "t", {})
    took_s = time.process_time() - begin
    size_mib = sum(file.stat().st_size for file in out.iterdir()) >> 20
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{source} to {target}: {took_s:.1f} s of CPU, {size_mib} MiB made, at most {peak_mib} MiB of memory")


def main() -> None:
    """Do all conversions one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--npus", type=int, default=256)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="where to write; several GiB for 16,384 x 1,000")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        with (folder / "in.goal").open("w", encoding="ascii") as file:
            file.writelines(goal_lines(given.npus, given.nodes))
        size_mib = (folder / "in.goal").stat().st_size >> 20
        print(f"{given.npus} NPUs with {given.nodes} nodes: a GOAL schedule of {size_mib} MiB")
        converted("goal", "chakra", [folder / "in.goal"], folder / "et")
        (folder / "in.goal").unlink()
        converted("chakra", "json", [folder / "et"], folder / "json")
        shutil.rmtree(folder / "et")
        converted("json", "goal", [folder / "json"], folder / "goal")


if __name__ == "__main__":
    main()
