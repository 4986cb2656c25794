"""Random small networks and programs, and the few that stand for one thing each."""

from typing import NamedTuple

from hypothesis import strategies as st

from nadi import et
from nadi.pdes import Settings
from nadi.topologies import build
from nadi.workload import KINDS, CollectiveSettings, ComputeModel, build_program
from tests.workload.plain import plain_algorithms

COLLECTIVES = (*range(8), int(et.CollectiveCommType.BARRIER))
KIND_OF = dict(zip(COLLECTIVES, KINDS, strict=True))
BASE = {"mtu_bytes": 512, "max_retries": 7, "nvlink_framing": False}


class Traces:
    """Traces of all NPUs under construction. Each method adds nodes and returns their ids by NPU."""

    def __init__(self, npus):
        self.nodes = [[] for _ in range(npus)]

    def _id(self, npu):
        return len(self.nodes[npu])

    def compute(self, npu, micros, *, cpu=False, deps=()):
        node = et.comp_node(self._id(npu), "c", duration_micros=micros, is_cpu_op=cpu, deps=deps)
        self.nodes[npu].append(node)
        return node.id

    def memory(self, npu, micros, deps=()):
        node = et.mem_node(self._id(npu), "m", et.NodeType.MEM_LOAD_NODE, 64, deps=deps)
        node.duration_micros = micros
        self.nodes[npu].append(node)
        return node.id

    def message(self, src, dst, size, tag=0, deps=((), ())):
        sent = self.send(src, dst, size, tag, deps[0])
        return sent, self.receive(src, dst, size, tag, deps[1])

    def send(self, src, dst, size, tag=0, deps=()):
        self.nodes[src].append(et.send_node(self._id(src), "s", src, dst, size, tag, deps=deps))
        return self._id(src) - 1

    def receive(self, src, dst, size, tag=0, deps=()):
        self.nodes[dst].append(et.recv_node(self._id(dst), "r", src, dst, size, tag, deps=deps))
        return self._id(dst) - 1

    def collective(self, members, kind, size, group="", deps=None):
        for npu in members:
            own = (deps or {}).get(npu, ())
            self.nodes[npu].append(et.coll_node(self._id(npu), "x", kind, size, pg_name=group, deps=own))

    def tables(self):
        return [et.table_of(et.metadata(), own, f"t.{npu}.et") for npu, own in enumerate(self.nodes)]

    def program(self, groups=None, settings=None):
        npus = len(self.nodes)
        return build_program(self.tables(), range(npus), npus, groups or {}, ComputeModel("trace"), settings)


def _spec(draw):
    rate = st.sampled_from(["100Gbps", "400Gbps", "600Gbps", "77Gbps", "1Gbps"])
    delay = st.sampled_from(["0ns", "1ns", "30ns", "500ns", "3us"])
    latency = draw(st.sampled_from(["0ns", "0ns", "7ns", "400ns"]))
    own = f"rate={draw(rate)},delay={draw(delay)}"
    up = f"uplink_rate={draw(rate)},uplink_delay={draw(delay)},switch_latency={latency}"
    spine = f"spine_rate={draw(rate)},spine_delay={draw(delay)},core_rate={draw(rate)},switch_latency={latency}"
    dims = draw(st.sampled_from(["Ring(4)_Switch(2)", "Switch(3)_Ring(3)", "FullyConnected(3)_Ring(2)_Switch(2)"]))
    rates = "_".join(draw(rate) for _ in range(dims.count("_") + 1))
    return draw(
        st.sampled_from(
            [
                f"switch:npus=2,{own},switch_latency={latency}",
                f"switch:npus=5,{own},switch_latency={latency}",
                f"ring:npus=2,{own}",
                f"ring:npus=5,{own}",
                f"ring:npus=6,{own}",
                f"fully-connected:npus=4,{own}",
                f"torus:sizes=2x3,{own}",
                f"torus:sizes=4x2,{own}",
                f"stack:dims={dims},rates={rates},delays={draw(delay)},switch_latency={latency}",
                f"leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,uplinks=2,{own},{up}",
                f"leaf-spine:leaves=2,hosts_per_leaf=4,spines=1,{own},{up}",
                f"fat-tree:pods=3,leaves_per_pod=2,hosts_per_leaf=2,spines_per_pod=2,cores_per_plane=2,{own},{spine}",
                f"rail-optimised:npus=6,gpus_per_host=3,hosts_per_rail_leaf=1,spines=2,{own},{up},nvlink_delay={draw(delay)}",
                f"rail-optimised:npus=8,gpus_per_host=2,hosts_per_rail_leaf=2,spines=2,{own},{up},nvlink_rate={draw(rate)}",
            ]
        )
    )


networks = st.composite(_spec)


class Workload(NamedTuple):
    """A program as what was drawn, so that a failure prints in a few lines.

    operations: (method of Traces, its arguments); groups: members by name; algorithm: name by kind.
    """

    operations: list
    groups: dict
    algorithm: dict

    def program(self, npus):
        traces = Traces(npus)
        for method, arguments in self.operations:
            getattr(traces, method)(**arguments)
        return traces.program(self.groups, CollectiveSettings(self.algorithm))


@st.composite
def workloads(draw, npus):  # noqa: C901 - one branch for each kind of operation
    """A program in which nobody waits for ever: each operation depends on earlier ones of the same NPU only."""
    names = ["a", "b"][: draw(st.integers(0, 2))]
    members = st.lists(st.integers(0, npus - 1), min_size=2, max_size=min(npus, 5), unique=True).map(tuple)
    groups = {name: draw(members) for name in names}
    nodes, operations = [0] * npus, []

    def deps(npu):
        own, nodes[npu] = nodes[npu], nodes[npu] + 1
        return draw(st.lists(st.integers(max(0, own - 3), own - 1), max_size=2, unique=True)) if own else []

    def add(method, **arguments):
        operations.append((method, arguments))

    def message(src, dst, size, tag):
        add("message", src=src, dst=dst, size=size, tag=tag, deps=(deps(src), deps(dst)))

    size = st.sampled_from([0, 1, 100, 511, 512, 513, 1024, 3000, 9000])
    for _ in range(draw(st.integers(1, 10))):
        what = draw(st.sampled_from(["compute", "memory", "message", "message", "incast", "collective"]))
        if what == "collective":
            name = draw(st.sampled_from(["", *names]))
            who = groups.get(name, tuple(range(npus)))
            kind, volume = draw(st.sampled_from(COLLECTIVES)), draw(st.integers(1, 6000))
            add("collective", members=who, kind=kind, size=volume, group=name, deps={npu: deps(npu) for npu in who})
        elif what == "message":
            src, dst = draw(st.lists(st.integers(0, npus - 1), min_size=2, max_size=2, unique=True))
            message(src, dst, draw(size), draw(st.integers(0, 2)))
        elif what == "incast":
            dst, volume = draw(st.integers(0, npus - 1)), draw(size)
            for src in range(npus):
                if src != dst:
                    message(src, dst, volume, 3)
        elif what == "memory":
            npu = draw(st.integers(0, npus - 1))
            add("memory", npu=npu, micros=draw(st.integers(1, 3)), deps=deps(npu))
        else:
            npu = draw(st.integers(0, npus - 1))
            add("compute", npu=npu, micros=draw(st.integers(1, 3)), cpu=draw(st.booleans()), deps=deps(npu))
    kinds = sorted({KIND_OF[op["kind"]] for method, op in operations if method == "collective"})
    return Workload(operations, groups, {kind: draw(st.sampled_from(plain_algorithms(kind))) for kind in kinds})


@st.composite
def settled(draw, *, lossy):
    """Settings; lossy: queues so short that packets are lost, and timeouts from too early to late."""
    chosen = {
        "mtu_bytes": draw(st.sampled_from([256, 512, 1000])),
        "seed": draw(st.integers(0, 2**31)),
        "window_bytes": draw(st.sampled_from([0, 0, 1, 1024, 4000])),
        "cut_through": draw(st.booleans()),
        "header_bytes": draw(st.sampled_from([82, 64, 100, 400])),
        "concurrent_collectives": draw(st.booleans()),
    }
    if lossy:
        chosen["queue_limit_bytes"] = draw(st.integers(1200, 5000))
        chosen["rto_ps"] = draw(st.sampled_from([0, 0, 3_000_000, 40_000_000, 10**9]))
    return Settings(**(BASE | chosen))


@st.composite
def runs(draw, *, lossy):
    spec = draw(networks())
    return spec, draw(workloads(build(spec).npus)), draw(settled(lossy=lossy))


def crowded_program(messages, collectives=90):
    """More messages and collectives of six NPUs at once than there is room for at first.

    Args:
        messages: How many each NPU sends.
        collectives: How many there are, each of a group of its own.
    """
    traces = Traces(6)
    for seq in range(messages):
        for src in range(6):
            traces.message(src, (src + 1 + seq % 5) % 6, 100 * seq, tag=seq)
    for number in range(collectives):
        traces.collective(range(6), 0, 600 + number, group=f"g{number}")
    return traces.program({f"g{number}": tuple(range(6)) for number in range(collectives)})
