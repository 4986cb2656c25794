"""What numbers of a run file and of options may be, and why; topologies/bounds.py has rates, times and sizes."""

MOST_WIRE_BYTES = 2**16 - 1
"""Of a packet with its headers, which says so in 16 bits."""
MOST_WINDOW_PACKETS = 2**22
"""Unacknowledged packets of a queue pair; sequence numbers have 24 bits, and half of them lie ahead."""
MOST_BUFFER_BYTES = 2**31 - 1
"""Of a switch: what the samples of its queues hold."""
MOST_TELEMETRY_BUFFER_BYTES = 2**29 - 1
"""Where packets carry how long the queues are, as for HPCC: what is left for that of a word."""
MOST_AT_A_TIME = 2**20
"""Collectives of an NPU; more of one group cannot be told apart."""
MOST_SEQUENCES = 2**32
"""Sequences that a replica serves at a time, and requests of one run."""
MOST_TOKENS = 2**40
"""Tokens of an iteration or of a cache: thousands of times what the largest GPU's memory holds."""
MOST_GPUS = 2**20
"""GPUs of a plan."""
MOST_WORKERS = 4096
MOST_SEED = 2**62
MOST_RETRIES = 30_000
