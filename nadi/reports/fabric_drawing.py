"""Pictures of fabrics as SVG, from their graphs: nodes in tiers, on a circle or on a grid, and the cables between them.

Tori and HyperX are drawn on a grid, switches that have groups (as of a dragonfly) on a circle, all others in tiers with
NPUs at the bottom. Where only NPUs join several networks, as planes or rails, each of these has a colour, otherwise
each kind of cable has one. Each mark and each cable has a title, which browsers show under the pointer.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from nadi import inputs
from nadi.errors import ConfigError, OutputError
from nadi.inputs.arrays import Float64, Int64, Mask
from nadi.reports.pages import COLOURS
from nadi.terminal import rate_text, time_text
from nadi.topologies import NVSWITCH, Graph, tier_of_node

MAX_NODES, MAX_CABLES = 1000, 5000  # of more, a page shows no single cables
_NEUTRAL = "#66717f"  # colour of switches and cables that no plane or kind colours
# Lengths in pixels
_NPU, _SWITCH, _GAP = 20.0, 34.0, 12.0  # width of an NPU and of a switch with their gaps; gap between servers or groups
_TIER, _CELL, _RING = 92.0, 96.0, 54.0  # distance of tiers, of points of a grid, and of the rings of a circle
_MARGIN, _LINE, _CHARACTER = 46.0, 18.0, 6.4  # around the picture, between lines of text, mean width of a character
_ARC, _STUB = 13.0, 26.0  # height of an arc per point that it passes, length of the ends of a cable that closes a ring
_SLANT = (0.77, -0.64)  # direction of the third dimension of a grid
_BEND = 0.3  # how far the middle of a cable is drawn towards the centre of the circle, over its length
_MIN_BEND = 26.0  # the same at least, in pixels: past a switch
_MAX_STRETCH = 3.0  # how much wider than needed NPUs are spread below many switches
_MAX_STUB_LABELS = 80  # ends of cables that have labels


class Cable(NamedTuple):
    """A line of the picture: parallel cables between two nodes."""

    path: str  # path in SVG
    title: str  # names of the ends, rate and delay
    colour: str  # colour, "#rrggbb"
    width: float  # width in pixels


class Mark(NamedTuple):
    """A node of the picture."""

    x: float  # pixels to the right
    y: float  # pixels down
    width: float  # width of a switch's box in pixels; 0 = an NPU, drawn as a circle
    text: str  # its number, or its name if it has none
    title: str  # its name
    colour: str  # colour, "#rrggbb"


class Label(NamedTuple):
    """A text in the picture."""

    x: float  # pixels to the right
    y: float  # pixels down, of the baseline
    text: str  # the text
    anchor: str  # "start", "middle" or "end": the point of the text that is at x


class Key(NamedTuple):
    """A line below the picture."""

    colours: tuple[str, ...]  # colours of the lines before the text
    text: str  # the text


class Drawing(NamedTuple):
    """The content of a picture."""

    name: str  # name of the fabric
    left: float  # left edge in pixels
    top: float  # upper edge in pixels
    width: float  # width in pixels
    height: float  # height in pixels
    frames: list[str]  # paths of frames around servers, planes or groups
    cables: list[Cable]  # lines
    marks: list[Mark]  # nodes
    labels: list[Label]  # texts beside nodes
    keys: list[Key]  # lines below the picture
    bottom: float  # lower edge of the picture without those lines, in pixels


class _Places(NamedTuple):
    """The places of nodes."""

    x: Float64  # float64[nodes], pixels to the right
    y: Float64  # float64[nodes], pixels down
    frames: list[str]  # paths of frames
    labels: list[Label]  # texts
    grid: Int64 | None = None  # int64[nodes, D], place on a grid
    sizes: tuple[int, ...] = ()  # points along each dimension of a torus
    bend: float | None = None  # on a circle: how far cables bend towards the centre, over their length


def write_drawing(graph: Graph, path: Path) -> None:
    """Write a picture of a fabric as SVG, the same bytes each time.

    Raise ConfigError for another file ending, or if single cables would not be seen; OutputError if the file cannot be
    written.

    Args:
        graph: The fabric.
        path: File to write, FILE.svg.
    """
    import jinja2

    if path.suffix.lower() != ".svg":
        raise ConfigError(f"-o {path}: found {path.suffix or 'no ending'!r}; expected .svg")
    if graph.nodes > MAX_NODES or graph.links // 2 > MAX_CABLES:
        found = f"{graph.nodes:,} nodes and {graph.links // 2:,} cables"
        expected = f"at most {MAX_NODES:,} and {MAX_CABLES:,}, as a smaller fabric of this kind has"
        raise ConfigError(f"{graph.name}: {found}; expected {expected}")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nadi.reports", "templates/fabric"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pixels"] = _pixels
    text = environment.get_template("fabric.svg.j2").render(drawing=_drawing(graph), line=_LINE)
    with inputs.refusing(path, "a file to write the picture to", OutputError):
        inputs.write_whole(path, text + "\n")


def _pixels(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0").replace("-0", "0" if round(value, 1) == 0 else "-0")


def _drawing(graph: Graph) -> Drawing:
    """Return the content of the picture of a fabric."""
    tier = np.where(graph.node_kind == NVSWITCH, -1, tier_of_node(graph))
    plane = _planes(graph)
    places = _places(graph, tier, plane)
    ends = np.sort(np.stack([graph.link_src[::2], graph.link_dst[::2]]), axis=0)
    rows = np.stack([*ends, graph.link_rate_bps[::2], graph.link_delay_ps[::2]])
    cables, parallel = np.unique(rows, axis=1, return_counts=True)
    kinds = [_kind(graph, *row) for row in cables.T.tolist()]
    counts = Counter(dict.fromkeys(kinds, 0))
    stubs: list[Label] = []
    lines = []
    for (a, b, *_), kind, count in zip(cables.T.tolist(), kinds, parallel.tolist(), strict=True):
        counts[kind] += count
        path, texts = _cable_path(graph, places, a, b)
        stubs += texts
        own = max(plane[a], plane[b])
        colour = _NEUTRAL
        if own >= 0:
            colour = COLOURS[own % len(COLOURS)]
        elif plane.max() < 0:
            colour = COLOURS[list(counts).index(kind) % len(COLOURS)]
        title = f"{graph.node_name(a)} - {graph.node_name(b)}, {kind.partition(', ')[2]}"
        title += f", {count} cables" if count > 1 else ""
        lines.append(Cable(path, title, colour, 1.1 + 0.6 * min(count - 1, 4)))
    if len(stubs) > _MAX_STUB_LABELS:
        stubs = []
    marks = [_mark(graph, places, plane, node) for node in range(graph.nodes)]
    keys = _keys(counts, plane, has_stub_labels=bool(stubs))
    return _framed(graph.name, places, lines, marks, [*places.labels, *stubs], keys)


def _kind(graph: Graph, a: int, b: int, rate_bps: int, delay_ps: int) -> str:
    """Return the kind of a cable in words: words of its ends, rate and delay."""
    words = sorted(map(graph.node_word, (a, b))) if a >= graph.npus else map(graph.node_word, (a, b))
    return f"{' - '.join(words)}, {rate_text(rate_bps)}, {time_text(delay_ps)}"


def _keys(counts: Counter[str], plane: Int64, *, has_stub_labels: bool) -> list[Key]:
    """Return the lines below the picture; counts: cables of each kind, plane: int64[nodes], plane of each node."""
    planes = int(plane.max()) + 1
    keys = []
    for number, (kind, count) in enumerate(counts.items()):
        own = () if planes else (COLOURS[number % len(COLOURS)],)
        keys.append(Key(own, f"{count:,} {'cable' if count == 1 else 'cables'} {kind}"))
    if planes:
        colours = tuple(COLOURS[number % len(COLOURS)] for number in range(planes))
        keys.append(Key(colours, f"{planes} networks that only NPUs and their servers join"))
    if has_stub_labels:
        keys.append(Key((), "A number at the end of a cable is that of the node at its other end."))
    return keys


def _framed(
    name: str, places: _Places, lines: list[Cable], marks: list[Mark], labels: list[Label], keys: list[Key]
) -> Drawing:
    """Return the drawing of these parts, with a size that holds all of them."""
    left, right = min(each.x for each in marks), max(each.x for each in marks)
    top, bottom = min(each.y for each in marks), max(each.y for each in marks)
    for label in labels:
        width = _CHARACTER * len(label.text)
        start = label.x - width * {"start": 0, "middle": 0.5, "end": 1}[label.anchor]
        left, right = min(left, start), max(right, start + width)
        top, bottom = min(top, label.y - _LINE / 2), max(bottom, label.y)
    # arcs rise above their ends
    left, top = left - _MARGIN * 0.75, top - _MARGIN * 0.75
    right, bottom = right + _MARGIN * 0.75, bottom + _MARGIN * 0.75
    needed = max(_CHARACTER * len(key.text) + 24 * len(key.colours) for key in keys) + _MARGIN
    missing = max(needed - (right - left), 0)
    height = bottom - top + _LINE * (len(keys) + 0.75)
    return Drawing(
        name, left - missing / 2, top, right - left + missing, height, places.frames, lines, marks, labels, keys, bottom
    )


def _mark(graph: Graph, places: _Places, plane: Int64, node: int) -> Mark:
    """Return the mark of a node; plane: int64[nodes], plane of each node."""
    name = graph.node_name(node)
    number = name.rpartition(" ")[2]
    colour = _NEUTRAL if plane[node] < 0 else COLOURS[plane[node] % len(COLOURS)]
    width = 0.0 if node < graph.npus else max(_SWITCH - 8, _CHARACTER * len(number) + 10)
    return Mark(float(places.x[node]), float(places.y[node]), width, number, name, colour)


def _planes(graph: Graph) -> Int64:
    """Return int64[nodes]: number of the network of each switch, if only NPUs and NVSwitches join several; else -1."""
    inner = (np.arange(graph.nodes) >= graph.npus) & (graph.node_kind != NVSWITCH)
    joined = inner[graph.link_src] & inner[graph.link_dst]
    ends = graph.link_src[joined], graph.link_dst[joined]
    part = connected_components(coo_array((np.ones(len(ends[0])), ends), shape=(graph.nodes, graph.nodes)))[1]
    plane = np.full(graph.nodes, -1)
    planes, number = np.unique(part[inner], return_inverse=True)
    if 1 < len(planes) <= len(COLOURS):
        plane[inner] = number
    return plane


def _places(graph: Graph, tier: Int64, plane: Int64) -> _Places:
    """Return the places of nodes; tier, plane: int64[nodes], tier and plane of each node."""
    switches = np.arange(graph.npus, graph.nodes)
    if len(graph.dims) > 1:
        # a torus of NPUs, or of routers with one NPU each
        npu = np.arange(graph.npus)
        digits = npu[:, None] // np.cumprod([1, *graph.dims[:-1]]) % graph.dims
        homes = graph.link_dst[(graph.link_src < graph.npus) & (graph.link_dst >= graph.npus)]
        if not len(switches) or (len(switches) == graph.npus and len(np.unique(homes)) == graph.npus):
            sizes = () if "FullyConnected" in graph.routing.stack else graph.dims
            return _on_grid(graph, np.concatenate([digits, digits][: 1 + (len(switches) > 0)]), sizes)
    if not len(switches):
        return _on_circle(graph, np.zeros(graph.nodes, np.int64), tier)
    if (graph.group[switches] < 0).any():
        return _in_tiers(graph, tier, plane)
    if len(np.unique(graph.group[switches])) < len(switches):
        return _on_circle(graph, graph.group.astype(np.int64), tier)
    grid = _product(graph)
    return (
        _on_circle(graph, np.maximum(graph.pod, 0).astype(np.int64), tier)
        if grid is None
        else _on_grid(graph, grid, ())
    )


def _product(graph: Graph) -> Int64 | None:
    """Return int64[nodes, 2]: place in its pod, and pod, of each switch, if each cable keeps one of them; else None.

    An NPU has the place of its switch.
    """
    switch = np.arange(graph.npus, graph.nodes)
    pod = np.maximum(graph.pod, 0)
    count = np.bincount(pod[switch])
    if len(np.unique(count)) > 1:
        return None
    grid = np.zeros((graph.nodes, 2), np.int64)
    grid[switch[np.argsort(pod[switch], kind="stable")], 0] = np.tile(np.arange(count[0]), len(count))
    grid[switch, 1] = pod[switch]
    up = (graph.link_src < graph.npus) & (graph.link_dst >= graph.npus)
    grid[graph.link_src[up]] = grid[graph.link_dst[up]]
    differences = (grid[graph.link_src] != grid[graph.link_dst]).sum(axis=1)
    return grid if differences.max(initial=0) <= 1 else None


def _on_grid(graph: Graph, grid: Int64, sizes: Sequence[int]) -> _Places:
    """Return places on a grid, a third dimension aslant; NPUs beside their switches; sizes: those of a torus, or ()."""
    cell = _CELL if graph.nodes > graph.npus else _CELL * 0.7 * (1 + (grid.shape[1] > 2) * 0.6)
    x, y = cell * grid[:, 0].astype(np.float64), cell * grid[:, 1].astype(np.float64)
    for dimension in range(2, grid.shape[1]):
        step = cell * 0.9 / (grid[:, dimension].max() + 1)
        x, y = x + step * grid[:, dimension], y - 0.7 * step * grid[:, dimension]
    if graph.nodes > graph.npus:
        # NPUs of a switch on a quarter of a circle below it on the right
        place = np.zeros(graph.npus, np.int64)
        up = (graph.link_src < graph.npus) & (graph.link_dst >= graph.npus)
        home = graph.link_dst[up][np.argsort(graph.link_src[up], kind="stable")]
        for switch in np.unique(home):
            place[home == switch] = np.arange((home == switch).sum())
        count = np.bincount(home)[home]
        angle = np.pi / 2 * (place + 0.5) / count
        x[: graph.npus] += 36 * np.cos(angle)
        y[: graph.npus] += 36 * np.sin(angle)
    return _Places(x, y, [], [], grid, tuple(sizes))


def _on_circle(graph: Graph, cluster: Int64, tier: Int64) -> _Places:
    """Return places on rings: NPUs outside their switches, switches without NPUs further inside.

    Args:
        graph: The fabric.
        cluster: int64[nodes], group of each switch; groups are apart from each other.
        tier: int64[nodes], tier of each node.
    """
    has_switches = graph.nodes > graph.npus
    outer = np.flatnonzero(tier == 1) if has_switches else np.arange(graph.npus)
    outer = outer[np.lexsort((outer, cluster[outer]))]
    up = (graph.link_src < graph.npus) & (graph.link_dst >= graph.npus)
    npus = np.bincount(graph.link_dst[up], minlength=graph.nodes)
    width = np.maximum(npus[outer] * _NPU, _SWITCH)
    gap = np.where(np.diff(cluster[outer], append=cluster[outer][0]) != 0, _GAP * 2, 0)
    middle = np.cumsum(width + gap) - width / 2 - gap
    turn = 2 * np.pi / (width + gap).sum()
    # the inner ring has room for its switches, too
    inner_ring = _RING * 2 + _SWITCH * (tier > 1).sum() / np.pi
    radius = max((width + gap).sum() / (2 * np.pi), 110.0, inner_ring if (tier > 1).any() else 0.0)
    angle = np.zeros(graph.nodes)
    angle[outer] = middle * turn
    distance = np.full(graph.nodes, radius - _RING * 0.8 if has_switches else radius)
    for switch, wide in zip(outer.tolist(), width.tolist(), strict=True) if has_switches else ():
        own = graph.link_src[up & (graph.link_dst == switch)]
        angle[own] = angle[switch] + turn * wide * ((np.arange(len(own)) + 0.5) / len(own) - 0.5)
    distance[: graph.npus] = radius
    frames, labels = [], []
    for number in np.unique(cluster[outer]).tolist():
        own = outer[cluster[outer] == number]
        first, last = angle[own[0]] - turn * width[0] / 2, angle[own[-1]] + turn * width[0] / 2
        inner = np.flatnonzero((cluster == number) & (tier > 1))
        angle[inner] = first + (last - first) * (np.arange(len(inner)) + 0.5) / max(len(inner), 1)
        distance[inner] = radius - _RING * 2
        if len(np.unique(cluster[outer])) > 1:
            low = radius - _RING * (2.35 if len(inner) else 1.2)
            frames.append(_sector(first, last, low, radius + 12))
            at = (first + last) / 2
            word = "group" if len(np.unique(graph.group[own])) == 1 and len(own) > 1 else "pod"
            labels.append(_outside(at, radius + 22, f"{word} {number}"))
    bend = _BEND if has_switches else 0.0
    return _Places(distance * np.sin(angle), -distance * np.cos(angle), frames, labels, bend=bend)


def _outside(angle: float, radius: float, text: str) -> Label:
    """Return a label outside a circle, at an angle from the top clockwise."""
    x, y = radius * np.sin(angle), -radius * np.cos(angle)
    anchor = "middle" if abs(np.sin(angle)) < 0.35 else "start" if x > 0 else "end"
    return Label(x, y + 4, text, anchor)


def _sector(first: float, last: float, low: float, high: float) -> str:
    """Return the path of a part of a ring between two angles and two radii."""
    corners = [(first, high), (last, high), (last, low), (first, low)]
    a, b, c, d = (f"{_pixels(radius * np.sin(at))} {_pixels(-radius * np.cos(at))}" for at, radius in corners)
    large = int(last - first > np.pi)
    outer, inner = (f"A{_pixels(radius)} {_pixels(radius)} 0 {large}" for radius in (high, low))
    return f"M{a} {outer} 1 {b} L{c} {inner} 0 {d} z"


def _in_tiers(graph: Graph, tier: Int64, plane: Int64) -> _Places:
    """Return places in rows, by tier from below; the switches of a plane are beside each other.

    Args:
        graph: The fabric.
        tier: int64[nodes], tier of each node; -1 = an NVSwitch.
        plane: int64[nodes], plane of each node.
    """
    level = _levels(graph, tier)
    planes = int(plane.max()) + 1
    host_gaps = np.diff(graph.host, prepend=graph.host[0]) != 0
    hosts = len(np.unique(graph.host))
    in_servers = 1 < hosts < graph.npus or (level < 0).any()
    npu_x = _NPU * (np.arange(graph.npus) + 0.5) + (_GAP * np.cumsum(host_gaps) if in_servers else 0)
    rows = {at: np.flatnonzero(level == at) for at in range(1, int(level.max()) + 1)}
    widest = max((np.bincount(np.maximum(plane[row], 0)).max() for row in rows.values() if len(row)), default=1)
    # the same width for each plane, in each row
    span = max((_SWITCH * widest + _GAP * 2), (npu_x[-1] + _NPU / 2) / max(planes, 1))
    total = span * max(planes, 1)
    x = np.zeros(graph.nodes)
    npu_x *= 1 if in_servers else min(total / (npu_x[-1] + _NPU / 2), _MAX_STRETCH)
    x[: graph.npus] = npu_x + (total - npu_x[-1] - npu_x[0]) / 2
    labels, frames = [], []
    for at, row in rows.items():
        mean = _mean_below(graph, x, (level >= 0) & (level < at))
        for number in np.unique(plane[row]).tolist():
            own = row[plane[row] == number]
            own = own[np.lexsort((own, np.round(mean[own], 6)))]
            x[own] = span * max(number, 0) + span * (np.arange(len(own)) + 0.5) / len(own)
    nvswitches = np.flatnonzero(level < 0)
    x[nvswitches] = _mean_below(graph, x, level == 0)[nvswitches]
    y = -_TIER * level.astype(np.float64)
    y[nvswitches] = _TIER * 0.55
    left = min(x.min() - _NPU, 0)
    for at in np.unique(level).tolist():
        row = np.flatnonzero(level == at)
        words = dict.fromkeys(graph.node_word(int(node)) for node in row)
        labels.append(Label(left - 8, float(y[row[0]]) + 4, ", ".join(words), "end"))
    if in_servers:
        for host in np.unique(graph.host).tolist():
            own = x[: graph.npus][graph.host == host]
            bottom = 11 if not len(nvswitches) else _TIER * 0.55 + 14
            frames.append(_box(own.min() - _NPU / 2, -11, own.max() + _NPU / 2, bottom))
    for number in range(planes):
        at_y = y[plane == number]
        frames.append(_box(span * number + 4, at_y.min() - 16, span * (number + 1) - 4, at_y.max() + 16))
    return _Places(x, y, frames, labels)


def _mean_below(graph: Graph, x: Float64, is_below: Mask) -> Float64:
    """Return float64[nodes]: mean of x over the links from those nodes (bool[nodes]); 0 without such links."""
    use = is_below[graph.link_src]
    sums = np.bincount(graph.link_dst[use], x[graph.link_src[use]], minlength=graph.nodes)
    return sums / np.maximum(np.bincount(graph.link_dst[use], minlength=graph.nodes), 1)


def _levels(graph: Graph, tier: Int64) -> Int64:
    """Return int64[nodes]: row of each node. A tier whose switches are two sets, with cables between them, has two.

    The set whose NPUs are nearer to each other is the lower one.
    """
    level = tier.copy()
    for at in range(int(tier.max()), 0, -1):
        inside = (tier[graph.link_src] == at) & (tier[graph.link_dst] == at)
        if not inside.any():
            continue
        side = {int(graph.link_src[inside][0]): 0}
        ends = list(zip(graph.link_src[inside].tolist(), graph.link_dst[inside].tolist(), strict=True))
        while fresh := {b: 1 - side[a] for a, b in ends if a in side and b not in side}:
            side |= fresh
        if len(side) < (tier == at).sum() or any(side[a] == side[b] for a, b in ends):
            continue
        spans = [
            np.ptp(own) if len(own := graph.link_src[(graph.link_dst == node) & (graph.link_src < graph.npus)]) else 0
            for node in side
        ]
        upper = side[list(side)[int(np.argmax(spans))]]
        level[tier > at] += 1
        level[[node for node, own in side.items() if own == upper]] += 1
    return level


def _box(left: float, top: float, right: float, bottom: float) -> str:
    """Return the path of a rectangle."""
    return f"M{_pixels(left)} {_pixels(top)} H{_pixels(right)} V{_pixels(bottom)} H{_pixels(left)} z"


def _cable_path(graph: Graph, places: _Places, a: int, b: int) -> tuple[str, list[Label]]:
    """Return the path of a cable between two nodes, and the labels at its ends if it closes a ring of a torus."""
    ends = [(float(places.x[node]), float(places.y[node])) for node in (a, b)]
    (ax, ay), (bx, by) = ends
    straight = f"M{_pixels(ax)} {_pixels(ay)} L{_pixels(bx)} {_pixels(by)}"
    if places.bend is not None:
        if a < graph.npus or not places.bend:
            return straight, []
        middle = np.hypot(ax + bx, ay + by) / 2
        bend = max(places.bend * np.hypot(ax - bx, ay - by), _MIN_BEND)
        share = max(middle - bend, 0) / max(middle, 1)
        return _bent(ends, (ax + bx) / 2 * share, (ay + by) / 2 * share), []
    if places.grid is None:
        return straight if ay != by else _bent(ends, (ax + bx) / 2, ay - abs(bx - ax) / 3), []
    apart = places.grid[b] - places.grid[a]
    if np.abs(apart).sum() <= 1:
        return straight, []
    closed = [d for d, size in enumerate(places.sizes) if abs(apart[d]) == size - 1]
    if closed:
        # a twisted ring ends elsewhere in longer dimensions, too: the ring is the one of the shortest
        dimension = min(closed, key=lambda d: places.sizes[d])
        others = [graph.node_name(node).rpartition(" ")[2] for node in (b, a)]
        return _closing(dimension, 1 if apart[dimension] > 0 else -1, ends, others)
    # an arc above a row or left of a column, the higher the more points it passes
    high = _ARC * (2 * int(np.abs(apart).max()) - 1)
    is_column = not apart[0]
    return _bent(ends, (ax + bx) / 2 - high * is_column, (ay + by) / 2 - high * (not is_column)), []


def _bent(ends: list[tuple[float, float]], x: float, y: float) -> str:
    """Return the path of a curve between two points, towards a point."""
    (ax, ay), (bx, by) = ends
    return f"M{_pixels(ax)} {_pixels(ay)} Q{_pixels(x)} {_pixels(y)} {_pixels(bx)} {_pixels(by)}"


def _closing(
    dimension: int, sign: int, ends: list[tuple[float, float]], others: Sequence[str]
) -> tuple[str, list[Label]]:
    """Return the two ends of a cable that closes a ring of a torus, and the number of the other node at each.

    Args:
        dimension: The dimension of the ring.
        sign: 1 = the second node is further on in this dimension, -1 = the first is.
        ends: The places of both nodes in pixels.
        others: The number of the second node, and of the first.
    """
    right, down = ((1.0, 0.0), (0.0, 1.0), _SLANT)[min(dimension, 2)]
    paths, labels = [], []
    for (x, y), other, way in zip(ends, others, (-sign, sign), strict=True):
        to_x, to_y = x + way * right * _STUB, y + way * down * _STUB
        paths.append(f"M{_pixels(x)} {_pixels(y)} L{_pixels(to_x)} {_pixels(to_y)}")
        if dimension == 0:
            labels.append(Label(to_x + way * 3, to_y + 4, other, "start" if way > 0 else "end"))
        else:
            labels.append(Label(to_x, to_y + (12 if way > 0 else -4), other, "middle"))
    return " ".join(paths), labels
