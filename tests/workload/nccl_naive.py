"""What NCCL 2.29 takes for a collective, worked out anew: its search link by link, then its times one after another.

Written from NCCL's src/graph/search.cc and src/graph/tuning.cc; nothing here is Nadi's.
"""

import math

# compute capability, GB/s of an NVLink as planned, PCIe x16, speeds inside and between hosts
GPUS = {
    "v100": {
        "cc": 70, "links": 6 * 20.0, "pcie": 12.0, "cpu": "intel",
        "inside": [40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3],
        "between": [48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12],
    },
    "h100": {
        "cc": 90, "links": 18 * 20.6, "pcie": 48.0, "cpu": "intel",
        "inside": [60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3],
        "between": [48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12],
    },
    "b200": {
        "cc": 100, "links": 18 * 40.1, "pcie": 48.0, "cpu": "intel",
        "inside": [90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18],
        "between": [96, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12],
    },
}  # fmt: skip
GPUS["a100"] = GPUS["v100"] | {"cc": 80, "links": 12 * 20.0, "pcie": 24.0, "cpu": "amd"}

BY_AGE = ("v100", "a100", "h100", "b200")
MOST_LL = [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [141.0, 45.0, 35.0], [282.0, 90.0, 70.0]]
RING_LL128 = [20.0, 20.0, 36.7, 40.0]
TREE_LL128 = [[20.0] * 3, [20.0] * 3, [36.7, 36.7, 29.0], [55.6, 31.67, 20.0]]
TREE_SIMPLE = [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [70.0, 42.8, 24.0]]
NVLS_TREES = [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [0.0, 57.7, 45.5], [0.0, 96.0, 80.0]]
EFFICIENCY = [0.0, 0.0, 0.85, 0.74]
CORRECTION = {
    "ll": "10 10 10 10 9 8 7 7 7 7 6 5 4 4 5 6 7 8 9 10 10 10 10 10",
    "ll128": "10 10 10 10 10 9 8 8 8 7 6 6 6 6 6 6 8 9 9 9 9 10 10 10",
    "simple": "9 9 9 9 9 9 9 8 7 6 6 5 5 5 5 6 7 8 7 7 8 9 9 9",
}


class Links:
    """What is left of the links of one host, GB/s: to and from each GPU's NVLinks, and each NIC's."""

    def __init__(self, gpu, gpus, net, nics=0):
        nvlink = GPUS[gpu]["links"] if gpus > 1 else 1e9
        self.out, self.into = [nvlink] * gpus, [nvlink] * gpus
        self.nics = nics or gpus
        self.sends = self.gets = [min(net, GPUS[gpu]["pcie"])] * self.nics if net else [1e9] * self.nics
        self.sends, self.gets = list(self.sends), list(self.gets)

    def take(self, speed, uses):
        """Take a speed, so many times of each (column, number); False if it is not there."""
        if any(getattr(self, column)[number] < times * speed - 1e-6 for (column, number), times in uses.items()):
            return False
        for (column, number), times in uses.items():
            getattr(self, column)[number] -= times * speed
        return True


def rings(links, speed, gpus, net):
    """Rings of this speed: over all GPUs, each in and out by one NIC, which take turns."""
    count = 0
    while count < 16:
        over_all = {(column, g): 1 for column in ("out", "into") for g in range(gpus)} if gpus > 1 else {}
        for shift in range(links.nics):
            nic = (count + shift) % links.nics
            if links.take(speed, over_all | ({("sends", nic): 1, ("gets", nic): 1} if net else {})):
                count += 1
                break
        else:
            return count
    return count


def search_ring(gpu, gpus, net, nics):
    """Channels and their speed."""
    made = GPUS[gpu]
    speeds = made["between"] if net else made["inside"]
    most = min(net, made["pcie"]) if net else made["links"]
    found = (0, 0.0)
    for speed in speeds:
        if speed > most + 1e-6:
            continue
        if found[0] and speed / found[1] <= 0.49:
            break
        count = rings(Links(gpu, gpus, net, nics), speed, gpus, net)
        if count * speed > found[0] * found[1]:
            found = (count, speed)
        if count == 16 or (gpus > 1 and found[0] * found[1] >= made["links"]):
            break
    count, speed = found
    if speed < 25 or (made["cc"] > 80 and speed < 50 and count > 4):
        return found
    doubled = min(16, 2 * count)
    return doubled, speed / math.ceil(doubled / count)


def search_tree(gpu, gpus, net, nics, count):
    """The speeds inside and between hosts of as many trees as there are rings: chains, one GPU less than a ring."""
    made = GPUS[gpu]
    speeds = made["between"] if net else made["inside"]
    for speed in speeds:
        if speed > (min(net, made["pcie"]) if net else made["links"]) + 1e-6:
            continue
        if gpus > 1 and speed * count * (gpus - 1) > gpus * made["links"] + 1e-6:
            continue
        if net and speed * count > nics * min(net, made["pcie"]) + 1e-6:
            continue
        break
    else:
        raise AssertionError
    inside, at = speed, speeds.index(speed)
    # the second pass of ncclTopoCompute: a faster speed inside, if all channels have it
    while net and gpus > 1 and at > 0 and inside < 2 * speed:
        at -= 1
        if speeds[at] * count * (gpus - 1) > gpus * made["links"] + 1e-6:
            break
        inside = speeds[at]
    return inside, speed


def search_nvls(gpu, gpus, net, nics):
    """Speed inside, and between hosts; a head's own links are used twice. Over hosts each NIC has a head."""
    made = GPUS[gpu]
    speeds = made["between"] if net else made["inside"]
    at = -1
    for speed in speeds:
        at += 1
        if net and speed > min(net, made["pcie"]) + 1e-6:
            continue
        links = Links(gpu, gpus, net)
        heads = [
            links.take(speed, {(column, g): 1 + (g == head) for column in ("out", "into") for g in range(gpus)})
            for head in range(nics if net else gpus)
        ]
        if all(heads):
            break
    between = speed
    while at > 0 and between < 2 * speed:
        if net and speeds[at - 1] > min(net, made["pcie"]) + 1e-6:
            break
        at -= 1
        between = speeds[at]
    return speed, between


def steps_of(kind, count):
    return {"all-reduce": 2 * (count - 1), "all-gather": count - 1, "reduce-scatter": count - 1}.get(kind, count)


class Group:
    """n = nodes x gpus on hosts with NVSwitches; net: GB/s of each NIC; nics: of a host, one for each GPU if 0."""

    def __init__(self, gpu, nodes, gpus, net, nics=0):
        self.nics = nics or gpus
        self.gpu, self.nodes, self.gpus, self.n = gpu, nodes, gpus, nodes * gpus
        self.net = net if nodes > 1 else 0
        self.cc, self.age, self.column = GPUS[gpu]["cc"], BY_AGE.index(gpu), min(nodes, 3) - 1
        self.channels, self.speed = search_ring(gpu, gpus, self.net, self.nics)
        self.tree_inside, self.tree_speed = search_tree(gpu, gpus, self.net, self.nics, self.channels)
        self.amd = GPUS[gpu]["cpu"] == "amd"

    def used(self):
        used = 2 * self.channels
        if self.cc >= 90 and self.nodes > 1 and self.speed > 45 and used < 16:
            used *= 2
        return min(used, 32)

    def most_ll(self):
        return MOST_LL[self.age if self.nodes == 1 else int(self.amd)][self.column]

    def ring(self, kind, size, proto):
        bus = self.channels * self.speed
        if proto == "ll":
            bus = min(self.most_ll(), bus * 0.5)
        if proto == "ll128":
            bus = min(bus * 0.92, self.channels * RING_LL128[self.age])
        n, steps = self.n, steps_of(kind, self.n)
        base = {"ll": 6.6, "ll128": 14.0, "simple": 8.4}[proto]
        inside = {"ll": 0.6, "ll128": 1.9, "simple": 3.4} if self.gpus > 1 else {"ll": 1.0, "ll128": 2.5, "simple": 5.7}
        net = {"ll": 2.7, "ll128": 4.0, "simple": 14.0} if self.gpus > 1 else {"ll": 5.0, "ll128": 8.5, "simple": 14.0}
        if kind in ("broadcast", "reduce"):
            hop = {"ll": 0.6, "ll128": 1.9, "simple": 4.0}
            if self.nodes > 1:
                hop = {"ll": 2.7, "ll128": 4.0, "simple": 14.0}
            return base + steps * hop[proto] + size / (1000 * bus * n / steps)
        hop, crossing = inside[proto], 0
        if self.nodes > 1:
            post = 2.0 if self.amd else 1.0
            hop = max(hop, post * 3 if proto == "simple" else post)
            crossing = steps_of(kind, self.nodes)
        latency = base + (steps - crossing) * hop + crossing * net[proto]
        if proto == "simple":
            latency *= self.plateau(kind, size)
        return latency + size / (1000 * bus * n / steps)

    def plateau(self, kind, size):
        piece = size // (self.used() * self.n)
        if piece < 64:
            return 1.0
        return (1.9 if self.cc < 80 else 1.4) if self.nodes > 1 and kind == "all-reduce" else 1.0

    def tree(self, size, proto):
        speed = self.tree_inside if self.nodes <= 2 else self.tree_speed
        bus = min(self.channels * speed * 0.92, self.channels * TREE_SIMPLE[self.age][self.column])
        if proto == "ll":
            bus = min(bus / 3.8, self.most_ll())
        if proto == "ll128":
            part = 7 / 9 if self.nodes == 1 else 120 / 128
            bus = min(bus * part, self.channels * TREE_LL128[self.age][self.column])
        if self.gpus == 1:
            bus *= 0.85
        base = {"ll": 6.8, "ll128": 14.0, "simple": 8.4}[proto]
        inside = {"ll": 0.6, "ll128": 1.25, "simple": 4.0}[proto]
        net = {"ll": 5.0, "ll128": 8.5, "simple": 14.0}[proto]
        log2 = int(math.log2(self.nodes))
        latency = base + 2 * ((self.gpus - 1) * inside + log2 * net)
        return latency + size / (1000 * bus * 0.5 * self.corrected(size, proto, 23))

    @staticmethod
    def corrected(size, proto, most):
        log_size = int(math.log2(size // 64)) if size >= 64 else -1
        return int(CORRECTION[proto].split()[log_size]) / 10 if 0 <= log_size < most else 1.0

    def nvls(self, kind, size, tree):
        inside, between = search_nvls(self.gpu, self.gpus, self.net, self.nics)
        heads = self.nics if self.net else self.gpus
        if heads < 2:
            return math.inf
        bw = inside * EFFICIENCY[self.age] * (heads - 1) / heads
        bw *= 2 if kind == "all-reduce" else (self.gpus - 1) / self.gpus
        bw = min(bw, between * (2 if tree and self.nodes <= 2 else 1))
        if tree:
            bw = min(bw, NVLS_TREES[self.age][self.column])
        reached = bw * heads * self.n / steps_of(kind, self.n)
        latency = 25.0
        if tree:
            latency += 2 * int(math.log2(self.nodes)) * 20.9
            if self.cc >= 100:
                reached *= self.corrected(size, "simple", 24)
        return latency + size / (1000 * reached)

    def pat(self, size):
        latency = 8.0 + int(math.log2(self.nodes)) * 14 / 3.5 + self.n * 2.8
        return latency + size / (1000 * self.tree_speed * self.channels * 0.75)

    def times(self, kind, size):
        """All that NCCL weighs, by algorithm and protocol, in us."""
        found = {}
        for proto in ("ll", "ll128", "simple"):
            if proto == "ll128" and self.gpus == 1:
                continue
            if (proto, self.gpu, self.nodes) != ("ll128", "b200", 1):  # as NVIDIA's measurements with 2.29.2 show
                found["ring", proto] = self.ring(kind, size, proto)
            if kind == "all-reduce":
                found["tree", proto] = self.tree(size, proto)
        if EFFICIENCY[self.age] and self.gpus > 2:
            if self.nodes == 1 and kind in ("all-reduce", "all-gather", "reduce-scatter"):
                found["nvls", "simple"] = self.nvls(kind, size, tree=False)
            if self.nodes > 1 and kind == "all-reduce":
                found["nvls-tree", "simple"] = self.nvls(kind, size, tree=True)
        if self.gpus == 1 and kind in ("all-gather", "reduce-scatter"):
            found["pat", "simple"] = self.pat(size)
        return found
