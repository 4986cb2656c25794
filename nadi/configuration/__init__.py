"""Run files: sections, keys and their effects, and the files that they name.

The bounds here are those of numbers in run files and options, with reasons; inputs/limits.py bounds rates, times and
sizes.
"""

from typing import NamedTuple

MAX_WIRE_BYTES = 2**16 - 1  # maximum size in bytes of a packet with its headers, whose length field has 16 bits
MAX_WINDOW_PACKETS = 2**22
"""Maximum number of unacknowledged packets of a queue pair: sequence numbers have 24 bits, and half of them lie
ahead."""
MAX_BUFFER_BYTES = 2**31 - 1  # maximum size in bytes of a switch's buffer, which the samples of its queues can hold
MAX_TELEMETRY_BUFFER_BYTES = 2**29 - 1
"""Maximum size in bytes of a switch's buffer if packets carry queue lengths, as for HPCC: the bits that a word has
left."""
MAX_COLLECTIVES_IN_FLIGHT = 2**20
"""Maximum number of collectives of an NPU at a time, which message numbers of one group can distinguish."""
MAX_SEQUENCES = 2**32  # maximum number of sequences that a replica serves at a time, and of requests of one run
MAX_TOKENS = 2**40
"""Maximum number of tokens of an iteration or of a cache: thousands of times the memory of the largest GPU."""
MAX_GPUS = 2**20  # maximum number of GPUs of a plan
MAX_WORKERS = 4096  # maximum number of workers, and of LPs per worker
MAX_SEED = 2**62  # maximum seed
MAX_RETRIES = 30_000  # maximum number of retransmissions of a packet; the engine counts them in 16 bits
MAX_LANES = 8  # maximum number of virtual lanes of a link
MAX_RESENDS = 10**9  # maximum number of times that a packet is trimmed and sent again: hours of simulated time
MAX_JOBS = 1024  # jobs of a run, with all copies: results keep the bytes of each job on each link
MAX_ITERATIONS = 100_000  # of a job: its traces are that many times as long


class DurationSources(NamedTuple):
    """Sources of the times of compute and memory nodes, besides durations in the traces."""

    operators: int  # number of nodes that take the times of their operators on a GPU
    num_ops: int  # number of nodes that take num_ops / peak_flops
    tensors: int  # number of nodes that take tensor_size / bandwidth


UNKNOWN = DurationSources(1, 1, 1)  # sources for traces that are not read yet: they may have all of them
