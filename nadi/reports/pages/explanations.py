"""What the columns of pages' tables mean: one table, by heading, for all pages.

A heading that means something else in one place than here is explained there (`Heading.why`).
"""

COLUMNS = {
    # Collectives
    "group": "As the traces call it; all = all NPUs.",
    "kind": "What the members do: all-reduce, all-gather, ...",
    "algorithm": "As run; its parameters stand in docs/explanation/collectives.md.",
    "size": "Bytes of the message; of a collective its whole buffer, as nccl-tests counts it.",
    "members": "NPUs of a group.",
    "count": "How many there are.",
    "time": "Simulated; of several collectives the mean, from when the last member came until the last was done.",
    "waited": "Mean time from when the first member came until the last one did: skew, not transfer.",
    "closed form": "What the same steps take on an idle network; ~ is a formula, not played.",
    "ratio": "Time over closed form: above 1, others were in the way.",
    "algbw GB/s": "Algorithm bandwidth: size over time.",
    "busbw (GB/s)": "Bus bandwidth: size over time, times the factor of nccl-tests for the kind.",
    "busbw GB/s": "Bus bandwidth: size over time, times the factor of nccl-tests for the kind.",
    "buffers": "Bytes of all buffers together.",
    "median": "From when all members are there until the last is done.",
    "waiting": "Sum of how long the first member waited for the last.",
    "n": "NPUs of a group.",
    # Sweeps of collectives
    "vs fastest": "Its time over that of the fastest algorithm at this size.",
    "way": "What an algorithm that chooses among several took.",
    "bound": "The least that any run takes: the most loaded link or the longest chain of latencies.",
    "from size": "The smallest size of a row of sizes at which this algorithm is fastest.",
    "to size": "The largest of them.",
    "times as fast as the next": "The time of the second fastest over that of the fastest.",
    # The critical path
    "what": "What happens in this row.",
    "sort": "Pieces that are alike.",
    "pieces": "How many of them are on the path.",
    "share": "Of the whole.",
    "most of it bound by": "What kept the communication from being shorter: docs/explanation/explain.md.",
    "change": "How far the value is from the first run's.",
    "the run would take": "Told from dependencies and closed forms, not simulated again.",
    "saves": "Of the run.",
    # NPUs
    "NPUs": "GPUs or other accelerators, each with its own trace.",
    "exposed share": "Exposed communication of all axes, over the run.",
    # Links
    "link": "From the node that sends to the node that receives.",
    "tier": "What the links join.",
    "rate": "Bits a second that it can send.",
    "sent": "Bytes with headers.",
    "busy": "What it sent over what it could have sent in the run.",
    "longest queue": "The longest wait of a packet times the link's rate.",
    "marked": "Packets that ECN marked at this port.",
    "paused": "How long the link was paused by PFC.",
    "dropped": "Packets lost at this port or by a fault.",
    # Messages that pauses held up
    "message": "Its sender and its receiver.",
    "slow-down": "Its time over what it takes alone on an idle network.",
    "most at": "The link that was paused longest while the message was on its way.",
    "sure": "Not sure: only some of several equal paths make it a victim.",
    # Energy
    "part": "Of the machines and of the data centre around them.",
    "static": "Drawn whatever is sent; of GPUs by what they do.",
    "for bits": "For bits that the ports sent.",
    "together": "Both.",
    # The simulation
    "worker": "A thread or process that simulates a part of the fabric: one or several logical processes.",
    "rank": "The MPI process in which the worker runs.",
    "working": "Wall time in which it simulated.",
    "waiting for others": "Wall time in which it waited for other workers to end a window, and for what they sent.",
    "share waiting": "Of the wall time that it worked or waited.",
    "packet-hops": "Packets times the links that each crossed, of those that this worker simulated.",
    "events": "Arrivals, departures and timers that it acted on.",
    # Runs beside each other
    "run": "Its folder.",
    "topology": "The fabric.",
    "network": "How the network is modelled: docs/explanation/fidelity.md.",
    "simulated time": "From the start until the last NPU was done.",
    "digest": "Of all that happened. Equal digests: the same run, on any machine.",
    "key": "A key of the run file.",
    "value": "As it was used.",
    "figure": "What is compared; the line below the table says what each means.",
    "error": "Why the point has no results.",
    # Traces
    "collective": "Its kind, number, group and name.",
    "bytes": "Of all of them together.",
    "least": "The smallest.",
    "most": "The largest.",
    "transfer": "From when the last member began until the last was done.",
    "last NPU": "The one for which the others waited.",
}
"""By heading without its unit."""


def explanation_of(heading: str) -> str:
    """What a column means; heading: with or without a unit in brackets at its end; "" = nobody has written it."""
    return COLUMNS.get(heading) or COLUMNS.get(heading.rpartition(" (")[0], "")
