"""Bounds on numbers of run files and options, with reasons; topologies/bounds.py bounds rates, times and sizes."""

MOST_WIRE_BYTES = 2**16 - 1
"""Maximum size in bytes of a packet with its headers, whose length field has 16 bits."""
MOST_WINDOW_PACKETS = 2**22
"""Maximum number of unacknowledged packets of a queue pair: sequence numbers have 24 bits, and half of them lie
ahead."""
MOST_BUFFER_BYTES = 2**31 - 1
"""Maximum size in bytes of a switch's buffer, which the samples of its queues can hold."""
MOST_TELEMETRY_BUFFER_BYTES = 2**29 - 1
"""Maximum size in bytes of a switch's buffer if packets carry queue lengths, as for HPCC: the bits that a word has
left."""
MOST_AT_A_TIME = 2**20
"""Maximum number of collectives of an NPU at a time, which message numbers of one group can distinguish."""
MOST_SEQUENCES = 2**32
"""Maximum number of sequences that a replica serves at a time, and of requests of one run."""
MOST_TOKENS = 2**40
"""Maximum number of tokens of an iteration or of a cache: thousands of times the memory of the largest GPU."""
MOST_GPUS = 2**20
"""Maximum number of GPUs of a plan."""
MOST_WORKERS = 4096
"""Maximum number of workers, and of LPs per worker."""
MOST_SEED = 2**62
"""Maximum seed."""
MOST_RETRIES = 30_000
"""Maximum number of retransmissions of a packet; the engine counts them in 16 bits."""
