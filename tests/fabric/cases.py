"""Random small scenarios of the fabric: a graph with switches that share their buffers, messages, settings."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from nadi.pdes import Settings, SharedBuffer
from nadi.pdes.network.balancing import balancing
from nadi.pdes.network.disciplines import discipline, names
from nadi.pdes.wire import CreditSwitch
from nadi.topologies import GraphBuilder
from nadi.workload import CollectiveSettings
from tests.fabric import naive
from tests.fabric.control import control_of
from tests.pdes.cases import COLLECTIVES, KIND_OF, Traces
from tests.workload.plain import plain_algorithms

GBPS = 10**9
SWITCH = {
    "buffer_bytes": 10**6, "pfc": True, "pfc_alpha": 1.0, "pfc_headroom_bytes": 0, "pfc_resume_offset_bytes": 0,
    "ecn": False,
    "ecn_kmin_bytes": 0, "ecn_kmax_bytes": 0, "ecn_pmax": 0.0, "trimming": False, "class_weights": (),
}  # fmt: skip


def settings_of(switch=None, **chosen):
    chosen = {"cnp_interval_ps": 0, "nvlink_framing": False} | chosen
    if switch is not None and "virtual_lanes" in switch:
        return Settings(**chosen, credits=CreditSwitch(**switch))
    return Settings(**chosen, switch=None if switch is None else SharedBuffer(**(SWITCH | switch)))


def run_naive(graph, program, settings, *, window=50, rto_ps=0, control=None, simulator=naive.Simulator):
    """The reference alone; a comparison takes window and rto_ps from what the kernel settled."""
    return simulator(graph, program, settings, window, rto_ps, control).run()


class Bounded(naive.Simulator):
    """Gives up a run of so many packet-hops."""

    MOST_HOPS = 100_000

    def transmit(self, link, packet, *times):
        if self.count["packet_hops"] > self.MOST_HOPS:
            raise TimeoutError
        super().transmit(link, packet, *times)


class Network(NamedTuple):
    """A graph as what was drawn. cables: (a, b, Gb/s, delay in ps); latencies: of each switch, ps."""

    npus: int
    latencies: tuple
    cables: tuple

    def graph(self):
        builder = GraphBuilder("drawn", self.npus)
        builder.add_named_switches([f"s{i}" for i in range(len(self.latencies))], latency_ps=self.latencies)
        for a, b, rate, delay in self.cables:
            builder.add_cables(a, b, rate * GBPS, delay)
        return builder.graph()


def star(npus, rate=100, delay=500_000, latency=0):
    """NPUs on one switch; rate: one for all, or one for each NPU."""
    rates = [rate] * npus if isinstance(rate, int) else rate
    return Network(npus, (latency,), tuple((i, npus, rates[i], delay) for i in range(npus)))


class Flows(NamedTuple):
    """What is sent: messages (src, dst, bytes), each after what its sender does first (micros of compute, 0 none);
    collectives (kind, bytes, algorithm) of all NPUs."""  # fmt: skip

    messages: tuple
    collectives: tuple = ()

    def program(self, npus):
        traces = Traces(npus)
        for src, dst, size, micros in self.messages:
            after = (traces.compute(src, micros),) if micros else ()
            traces.message(src, dst, size, 0, (after, ()))
        for kind, size, _ in self.collectives:
            traces.collective(range(npus), kind, size)
        chosen = {KIND_OF[kind]: algorithm for kind, _, algorithm in self.collectives}
        return traces.program({}, CollectiveSettings(chosen))


class Scenario(NamedTuple):
    """All of a random run; it prints in a few lines.

    switch: keys of the shared buffer, or of credits where it names a buffer of lanes; control: signals and first pace
    of a congestion control, or ().
    """

    network: Network
    flows: Flows
    switch: dict
    chosen: dict
    control: tuple = ()
    lps: int = 1

    def build(self):
        graph = self.network.graph()
        chosen = dict(self.chosen)
        if self.control:
            chosen["congestion_control"] = control_of(*self.control)
        return graph, self.flows.program(graph.npus), settings_of(self.switch, **chosen)


rates = st.sampled_from([100, 100, 100, 25, 400, 600, 77])
delays = st.sampled_from([0, 1000, 30_000, 36_640, 500_000])
latencies = st.sampled_from([0, 0, 7000, 400_000])


@st.composite
def stars(draw):
    npus, one = draw(st.integers(3, 6)), draw(rates)
    each = [one] * npus if draw(st.booleans()) else [draw(rates) for _ in range(npus)]
    return star(npus, each, draw(delays), draw(latencies))


@st.composite
def parking_lots(draw):
    """Switches in a row with one or two NPUs each, and one or two cables between neighbours."""
    row = draw(st.integers(2, 4))
    hosts = [draw(st.integers(1, 2)) for _ in range(row)]
    npus, cables, first = sum(hosts), [], 0
    rate, delay, between = draw(rates), draw(delays), draw(rates)
    for i, count in enumerate(hosts):
        cables += [(npu, npus + i, rate, delay) for npu in range(first, first + count)]
        first += count
    parallel, longer = draw(st.integers(1, 2)), draw(delays)
    for i in range(row - 1):
        cables += [(npus + i, npus + i + 1, between, longer)] * parallel
    return Network(npus, tuple(draw(latencies) for _ in range(row)), tuple(cables))


@st.composite
def leaf_spines(draw, *, uneven=False):
    """uneven: each cable between leaf and spine has a rate of its own, and there are many."""
    leaves, hosts, spines, uplinks = (draw(st.integers(*ends)) for ends in ((2, 3), (1, 3), (1, 2), (1, 2)))
    npus, own, up = leaves * hosts, (draw(rates), draw(delays)), (draw(rates), draw(delays))
    cables = [(npu, npus + npu // hosts, *own) for npu in range(npus)]
    for leaf in range(leaves):
        for spine in range(spines):
            own_rates = [draw(rates) if uneven else up[0] for _ in range(uplinks + uneven)]
            cables += [(npus + leaf, npus + leaves + spine, one, up[1]) for one in own_rates]
    return Network(npus, (draw(latencies),) * leaves + (draw(latencies),) * spines, tuple(cables))


networks = st.one_of(stars(), parking_lots(), leaf_spines())


@st.composite
def flows(draw, npus, *, collectives, most_bytes):
    """Incasts and single messages; with collectives the second class has something to compete with."""
    size = st.sampled_from([size for size in (0, 1, 500, 3000, 9000, 20_000, 40_000) if size <= most_bytes])
    micros, volumes = st.sampled_from([0, 0, 0, 1, 2]), [size for size in (1000, 9000, 30_000) if size <= most_bytes]
    messages = []
    for _ in range(draw(st.integers(1, 3))):
        dst, volume, late = draw(st.integers(0, npus - 1)), draw(size), draw(micros)
        if draw(st.booleans()):
            messages += [(src, dst, volume, late) for src in range(npus) if src != dst]
        else:
            messages.append((draw(st.sampled_from([n for n in range(npus) if n != dst])), dst, volume, late))
    posted = []
    for _ in range(draw(st.integers(1, 2)) if collectives else draw(st.integers(0, 1))):
        kind = draw(st.sampled_from(COLLECTIVES))
        if all(kind != other for other, _, _ in posted):
            posted.append((kind, draw(st.sampled_from(volumes)), None))
    names = {kind: draw(st.sampled_from(plain_algorithms(KIND_OF[kind]))) for kind, _, _ in posted}
    return Flows(tuple(messages), tuple((kind, volume, names[kind]) for kind, volume, _ in posted))


@st.composite
def scenarios(draw, *, pfc, trim=False, controlled=False, selective=False, adaptive=False, short=False):
    """pfc: lossless, buffers just above the headrooms; else so small that packets are lost (or trimmed) and sent again.

    Where packets are lost windows are small: whole windows are sent again, and many small runs tell more than a few.
    short: messages are; where headers leave next to no room for data, long ones are sent again and again.
    """
    network = draw(leaf_spines(uneven=True) if adaptive else networks)
    two = draw(st.booleans())
    mtu = draw(st.sampled_from([256, 512, 1000]))
    graph = network.graph()
    shared = draw(st.integers(2, 40)) * (mtu + 82)
    # messages and collectives have a class each: 1 and 0, or any two
    classes = draw(st.sampled_from([(1, 0), (1, 0), (0, 7), (6, 3), (3, 3)])) if two else (0, 0)
    chosen = {"mtu_bytes": mtu, "seed": draw(st.integers(0, 2**31)), "p2p_class": classes[0], "max_retries": 60}
    if classes[1]:
        chosen |= {"group_classes": np.full(64, classes[1]), "named_classes": tuple(sorted({*classes}))}
    chosen["max_resends"] = 300  # so that neither takes long over packets that are trimmed for ever
    chosen["window_bytes"] = draw(st.sampled_from([0, 4000, 50_000] if pfc else [1000, 2500, 4000]))
    switch = {"pfc": pfc, "trimming": trim, "pfc_alpha": draw(st.sampled_from([0.125, 0.5, 1.0, 2.0, 8.0]))}
    if pfc:
        switch["buffer_bytes"] = shared + largest_headrooms(graph, mtu + 82) * (1 + two)
    else:  # the threshold must let a packet in, or all are lost for ever
        switch["buffer_bytes"] = max(shared, int(2 * (mtu + 82) / min(1.0, switch["pfc_alpha"])))
    switch["pfc_resume_offset_bytes"] = draw(st.sampled_from([0, 0, 500, 3000]))
    switch["class_weights"] = draw(st.sampled_from([(), (1, 1), (2, 1), (1, 3), (2, 1, 1, 3, 1, 1, 2)])) if two else ()
    switch["discipline"] = draw(st.sampled_from([None, *map(discipline, names())])) if two else None
    if switch["discipline"] and switch["discipline"].name == "ets" and draw(st.booleans()):
        switch["class_weights"] = draw(st.sampled_from([(1, 0), (0, 1), (3, 1, 1, 1, 1, 1, 0, 0), (0,) * 8]))
    if draw(st.sampled_from([True, True, False])):
        low = draw(st.integers(0, 3000))
        switch |= {"ecn": True, "ecn_kmin_bytes": low, "ecn_kmax_bytes": low + draw(st.integers(0, 4000))}
        switch["ecn_pmax"] = draw(st.sampled_from([0.1, 0.5, 1.0]))
        if draw(st.booleans()):
            switch["ecn_by_class"] = ((classes[0], 0, draw(st.integers(0, 2000)), 1.0), (5, 9, 9, 0.1))
    if not pfc:
        chosen["rto_ps"] = draw(st.sampled_from([30_000_000, 200_000_000]))
    if selective:
        chosen |= {"selective_repeat": True, "reorder_packets": draw(st.sampled_from([0, 1, 3, 8]))}
        chosen["window_bytes"] = draw(st.sampled_from([1000, 4000, 20_000]))
    if adaptive:
        chosen |= {"load_balancing": balancing("adaptive"), "selective_repeat": True, "reorder_packets": 0}
    control = ()
    if controlled:
        signals = draw(st.sampled_from(SIGNALS))
        control = (signals, draw(st.sampled_from([0.0, 0.5, 1.0, 1.7, 6.0])))
        chosen["cnp_interval_ps"] = draw(st.sampled_from([0, 300_000, 5_000_000]))
        chosen["cnp_delay_ps"] = draw(st.sampled_from([0, 0, 100_000, 7_000_000]))
    lps = draw(st.sampled_from([1, 1, 2, 3]))
    most_bytes = 3000 if short else 40_000
    return Scenario(
        network, draw(flows(graph.npus, collectives=two, most_bytes=most_bytes)), switch, chosen, control, lps
    )


@st.composite
def credit_scenarios(draw):
    """Links with credits, most with little room, so that lanes wait for credits."""
    adaptive = draw(st.booleans())
    network = draw(leaf_spines(uneven=True) if adaptive else networks)
    lanes, mtu = draw(st.integers(1, 8)), draw(st.sampled_from([256, 512, 1000]))
    unit = draw(st.sampled_from([1, 32, 64, 300]))
    rules = {"virtual_lanes": lanes, "credit_unit_bytes": unit, "credit_frame_bytes": draw(st.sampled_from([1, 8, 84]))}
    least = -(-(mtu + 82) // unit) * unit
    rules["lane_buffer_bytes"] = draw(st.sampled_from([0, least, 2 * least, 5 * least + unit - 1]))
    rules["credit_return_bytes"] = draw(st.sampled_from([0, 0, 2000]))
    rules["lane_weights"] = draw(st.sampled_from([(), (1, 2, 3, 4, 5, 6, 7, 8)[:lanes], (80, 40, 20, 1) * 2]))
    rules["lane_weights"] = rules["lane_weights"][:lanes]
    rules["high_lanes"] = draw(st.integers(0, lanes - 1))
    rules["high_limit_bytes"] = draw(st.sampled_from([0, 3000, 65536]))
    chosen = {"mtu_bytes": mtu, "seed": draw(st.integers(0, 2**31)), "p2p_class": draw(st.integers(0, lanes - 1))}
    chosen["window_bytes"] = draw(st.sampled_from([0, 4000, 50_000]))
    if adaptive:
        chosen |= {"load_balancing": balancing("adaptive"), "selective_repeat": True, "reorder_packets": 0}
    control = (("rtt",), draw(st.sampled_from([0.0, 1.0, 1.7]))) if draw(st.booleans()) else ()
    posted = draw(flows(network.npus, collectives=lanes > 1, most_bytes=40_000))
    return Scenario(network, posted, rules, chosen, control, draw(st.sampled_from([1, 1, 2, 3])))


SIGNALS = (
    ("ecn", "rtt"),
    ("cnp", "rtt"),
    ("cnp",),
    ("rtt",),
    ("telemetry",),
    ("cnp", "rtt", "telemetry"),
    ("ecn", "rtt", "telemetry"),
)


def largest_headrooms(graph, z_max):
    """The headrooms of the switch that has most, one class."""
    links = [naive.Link(graph, number) for number in range(graph.links)]
    return max(
        sum(naive.headroom_of(graph, link, links[link.number ^ 1], z_max) for link in links if link.dst == node)
        for node in range(graph.npus, graph.nodes)
    )
