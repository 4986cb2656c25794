"""Times of all-reduces on two hosts of eight GPUs that others have published, from 8 B on in powers of two.

Each value holds the microseconds out of place and in place that nccl-tests printed.
"""

from tests.studies.printed_logs import Times, today

AWS_P5 = (
    """
    87.96 76.83 77.37 77.60 77.20 78.46 77.56 76.98 77.92 83.26 88.46 97.22 98.84 101.1 100.5 104.5 108.8
    119.1 145.8 163.2 197.9 282.3 442.8 597.4 872.0 1501.2 2599.4 4556.5 9079.2
    """,
    """
    78.05 77.15 75.38 79.80 77.78 80.39 78.00 78.52 78.64 83.16 86.32 94.82 99.85 96.80 99.13 102.2 109.8
    121.5 144.7 162.4 197.9 290.3 417.4 591.6 872.8 1503.1 2553.0 5274.0 9128.1
    """,
)
"""Two p5.48xlarge of AWS with EFA: aws-ia/terraform-aws-eks-blueprints, docs of the pattern nvidia-gpu-efa."""

AWS_P4D = (
    """
    174.2 171.1 162.4 157.9 158.7 158.7 158.7 161.3 176.5 165.7 172.1 189.9 220.4 224.0 227.3 234.2 257.4
    307.4 388.3 522.7 761.2 1200.2 1565.5 2724.5 4071.8 7390.4 13605 25940
    """,
    """
    171.7 167.0 158.1 157.9 158.3 158.7 159.1 161.4 175.7 165.7 171.5 189.0 218.2 221.0 223.3 233.2 257.3
    306.7 388.7 521.6 757.8 1195.9 1559.6 2727.9 4070.3 7387.7 13594 25985
    """,
)
"""Two p4d.24xlarge of AWS with EFA and NCCL_PROTO=simple: an HPC workshop of AWS, "run the NCCL tests"."""

CRUSOE = (
    """
    115.8 62.97 63.93 61.56 64.07 60.12 67.30 55.13 60.65 58.77 59.48 74.41 72.30 82.01 93.80 81.48 87.75
    120.2 117.1 94.94 211.9 256.4 262.1 476.1 743.9 1282.2 2480.6 4531.0 9025.7
    """,
    """
    57.98 65.20 54.90 64.40 54.52 64.40 53.60 71.49 57.86 58.57 58.58 64.55 78.95 69.39 76.66 80.95 83.72
    83.11 112.6 128.0 214.2 200.4 262.0 474.3 745.6 1286.7 2481.4 4550.3 9064.7
    """,
)
"""Two h100-80gb-sxm-ib.8x of Crusoe: README of crusoecloud/crusoe-ml-rke2."""

P4D = """
gpu = "a100"
gpus_per_host = 8
gpus = 64

[fabric]
name = "rail-fat-tree"
accelerator = "a100"
nvlink_rate = "300GB/s"
nics_per_host = 4
rate = "100Gbps"
hosts_per_unit = 8
oversubscription = 1
switch_latency = "600ns"
"""
"""A cluster file for p4d.24xlarge: four NICs of 100 Gb/s."""


def log_of(site, command="all_reduce_perf -b 8 -e 2G -f 2 -g 1"):
    """Return the log of nccl-tests with the times of a site."""
    columns = zip(*(times.split() for times in site), strict=True)
    rows = [Times(8 << power, *map(float, times)) for power, times in enumerate(columns)]
    return "\n".join([command, *today(rows, "all-reduce", 16, 2)]) + "\n"
