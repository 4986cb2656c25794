"""The roofline beside NVIDIA's measured kernel times, by GPU and class of operators; needs aiconfigurator-core.

    python scripts/kernel_tables.py [-o FILE.json] [--rows 1000] [--seed 1] [GPU ...]

Each class is a random sample of the rows of aiconfigurator-core, as workload/compute/nvidia.py reads them. Constants of
the roofline are fitted to one half of the rows of A100, H100 and B200 (an even checksum of the operator's text), and
the sample is from the other half. Outliers do not count: rows of more bytes than twice the L2 cache that were measured
faster than the memory's peak moves them. Columns: rows, geometric mean of roofline / measured, mean absolute error,
standard deviation of the logarithm of the ratio.
"""

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.units import PS_PER_S
from nadi.workload.compute import Efficiencies, Gpu, Operator, find_gpu, nvidia
from nadi.workload.compute.times import rooflines_ps

GPUS = (
    "a100",
    "h100",
    "b200",
    "h200",
    "b300",
    "gb200",
)  # GPUs of the page; nothing is fitted to rows of the last three
CLASSES = (
    ("gemm", "bf16", "products in bf16"),
    ("gemm", "fp8", "products in fp8"),
    ("attention", "bf16", "attention of prompts"),
    ("attention", "bf16", "attention of decoding"),
    ("latent-attention", "bf16", "latent attention"),
    ("grouped-gemm", "bf16", "experts in bf16"),
)
"""Kind, data type and name of each class."""


def results(gpus: Sequence[str], row_count: int, seed: int) -> Iterator[tuple[str, str, int, float, float, float]]:
    """Yield GPU, class, number of rows, geometric mean of the ratio, mean absolute error, and spread.

    Args:
        gpus: The names of the GPUs.
        row_count: The number of rows of each class that are drawn from NVIDIA's tables.
        seed: The seed of the draw.
    """
    root = nvidia.folder()
    if root is None:
        raise SystemExit(f"{nvidia.PACKAGE} is not installed; expected {nvidia.INSTALL}")
    for name in gpus:
        gpu, draw = find_gpu(name), np.random.default_rng(seed)

        def alone_ps(operators: Sequence[Operator], gpu: Gpu = gpu) -> NDArray[np.float64]:
            return rooflines_ps(operators, gpu, Efficiencies())

        for kind, dtype, title in CLASSES:
            if dtype not in gpu.peak_flops:
                continue
            measured = list(nvidia.rows_of(root / gpu.nvidia_tables, kind, dtype, alone_ps))
            if kind == "attention":
                of_decoding = title.endswith("decoding")
                measured = [row for row in measured if (row[0].shape[3] == 1) == of_decoding]
            measured = [row for row in measured if _is_held_out(row[0]) and not _is_outlier(*row, gpu)]
            if not measured:
                continue
            sample = [measured[i] for i in draw.choice(len(measured), min(row_count, len(measured)), replace=False)]
            times_ps = np.array([time_ps * nvidia.share_of(operator, alone_ps) for operator, time_ps in sample])
            ratios = alone_ps([operator for operator, _ in sample]) / times_ps
            logs = np.log(ratios)
            yield name, title, len(sample), *map(float, (np.exp(logs.mean()), np.abs(ratios - 1).mean(), logs.std()))


def _is_held_out(operator: Operator) -> bool:
    """Return whether an operator is in the half of the rows to which nothing is fitted."""
    return bool(zlib.crc32(str(operator).encode()) % 2)


def _is_outlier(operator: Operator, time_ps: float, gpu: Gpu) -> bool:
    """Return whether the memory's peak is too slow for a measured time, though the data do not fit into L2."""
    return operator.bytes > 2 * gpu.l2_bytes and operator.bytes / gpu.memory_bandwidth_Bps * PS_PER_S > time_ps


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpus", nargs="*", metavar="GPU", help=f"default: {', '.join(GPUS)}")
    parser.add_argument("-o", "--out", metavar="FILE.json", type=Path, help="file for the table as JSON")
    parser.add_argument("--rows", type=int, default=1000, help="number of rows of each class")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    args = parser.parse_args()
    table = []
    for row in results(args.gpus or GPUS, args.rows, args.seed):
        table.append(row)
        print(
            "{:<6} {:<22} {:>5} rows, geometric mean {:.2f}, mean error {:.0%}, spread {:.2f}".format(*row), flush=True
        )
    if args.out:
        args.out.write_text(json.dumps(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
