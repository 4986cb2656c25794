"""Explanations of the columns of all pages' tables, by heading.

A table overrides an explanation that does not fit its column (`Heading.why`).
"""

COLUMNS = {
    # Collectives
    "group": "Name in the traces; all = all NPUs.",
    "kind": "Kind of operation: all-reduce, all-gather, ...",
    "algorithm": "Algorithm that ran; docs/explanation/collectives.md describes its parameters.",
    "size": "Bytes of the message, or of a collective's whole buffer as in nccl-tests.",
    "members": "NPUs of a group.",
    "count": "Number of collectives.",
    "time": "Simulated time (mean of several) from the begin of the last member to the end of the last.",
    "waited": "Mean time between the begins of the first and the last member: skew, not transfer.",
    "closed form": "Time of the same steps on an idle network; ~ marks a formula instead of played steps.",
    "ratio": "Time over closed form: above 1, other traffic interfered.",
    "algbw GB/s": "Algorithm bandwidth: size over time.",
    "busbw (GB/s)": "Bus bandwidth: size over time, times the factor of nccl-tests for the kind.",
    "busbw GB/s": "Bus bandwidth: size over time, times the factor of nccl-tests for the kind.",
    "buffers": "Sum of the buffer sizes in bytes.",
    "median": "Median time from the begin of the last member to the end of the last.",
    "waiting": "Sum of the first members' waits for the last members.",
    "n": "NPUs of a group.",
    # Sweeps of collectives
    "vs fastest": "Time over that of the fastest algorithm at this size.",
    "variant": "Variant that an algorithm with several variants selected.",
    "bound": "Lower bound of the time: the most loaded link or the longest chain of latencies.",
    "from size": "Smallest size of the range in which this algorithm is fastest.",
    "to size": "Largest size of the range.",
    "speed-up over the next": "The time of the second fastest over that of the fastest.",
    # The critical path
    "activity": "Activity in this row.",
    "operation": "Label of similar pieces.",
    "pieces": "Number of these pieces on the path.",
    "share": "Share of the total.",
    "main bound": "Bound of most of the communication time: docs/explanation/explain.md.",
    "change": "Change from the first run.",
    "predicted time": "Prediction from dependencies and closed forms, not simulated again.",
    "saving": "Share of the run's time.",
    # NPUs
    "NPUs": "GPUs or other accelerators, each with its own trace.",
    "exposed share": "Exposed communication of all axes, over the run.",
    # Links
    "link": "Sending node and receiving node.",
    "tier": "Kinds of nodes at the two ends.",
    "rate": "Capacity in bits per second.",
    "sent": "Bytes sent, headers included.",
    "busy": "Bytes sent over the capacity during the run.",
    "longest queue": "Longest wait of a packet times the link's rate.",
    "marked": "Packets that ECN marked at this port.",
    "paused": "Time for which PFC paused the link.",
    "dropped": "Packets lost at this port or by a fault.",
    # Messages that pauses delayed
    "src": "Sender.",
    "dst": "Receiver.",
    "slow-down": "Time over that on an idle network.",
    "longest pause at": "Link on the path with the longest pause during the message.",
    "certain": '"perhaps": the message is a victim on some of several equal paths only.',
    # Energy
    "part": "Part of the machines or of the data centre.",
    "static": "Energy independent of traffic; for GPUs, by their activity.",
    "traffic": "Energy per bit that the ports sent.",
    "total": "Sum of static and traffic.",
    # The simulation
    "worker": "A thread or process that simulates a part of the fabric: one or several logical processes.",
    "rank": "The MPI process in which the worker runs.",
    "working": "Wall time of simulation.",
    "waiting for others": "Wall time of waiting for other workers to end a window, and for their messages.",
    "share waiting": "Share of its working and waiting time.",
    "packet-hops": "Number of links that packets crossed on this worker, summed.",
    "events": "Arrivals, departures and timers that it processed.",
    # Runs beside each other
    "run": "Folder of the run.",
    "topology": "The fabric.",
    "network": "Network model: docs/explanation/fidelity.md.",
    "simulated time": "Time from the start to the end of the last NPU.",
    "digest": "Digest of all events; runs with equal digests are identical.",
    "key": "A key of the run file.",
    "value": "Value in the run.",
    "metric": "Compared quantity; the line below the table explains each.",
    "category": "Category of the NPUs' time.",
    "quantity": "Quantity of the tier.",
    "error": "Reason why the point has no results.",
    # Simulated beside measured times
    "measured": "Time in the traces.",
    "simulated": "Time of the simulation.",
    "total error": "Error of the sum of all times.",
    "median error": "Half of the errors are larger.",
    "p95": "95 % of the errors are at most this large.",
    "worst": "Largest error.",
    "measured busbw": "Bus bandwidth of the measured transfer.",
    "simulated busbw": "Bus bandwidth of the simulated transfer.",
    "measured wait": "Median of the longest wait for the last member, in the traces.",
    "simulated wait": "Median of the longest wait for the last member, in the simulation.",
    "from NPU": "Sender.",
    "to NPU": "Receiver.",
    "NPU": "GPU or other accelerator.",
    "span": "Time from the first begin to the last end of the rank, measured.",
    "compute": "Sum of the times of compute nodes.",
    "began later by": "Begin of the rank after that of the first rank.",
    "clock ahead by": "Offset of the rank's clock in the traces, estimated from common collectives.",
    "node": "Id of the node in its trace.",
    "name": "Name of the node in its trace.",
    # Traces
    "collective": "Kind, number, group and name.",
    "bytes": "Sum of the sizes in bytes.",
    "minimum": "Smallest size.",
    "maximum": "Largest size.",
    "sizes": "Number of different sizes.",
    "transfer": "Time from the begin of the last member to the end of the last.",
    "last NPU": "NPU for which the others waited.",
}
"""Explanations by heading without its unit."""


def explanation_of(heading: str) -> str:
    """Return the explanation of a column, or "" without one; heading: with or without a unit in brackets at its end."""
    return COLUMNS.get(heading) or COLUMNS.get(heading.rpartition(" (")[0], "")
