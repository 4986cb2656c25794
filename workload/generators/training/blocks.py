"""Translation of items into blocks of trace rows, which are stamped (copied into the trace) for every micro-batch.

The computations of a GPU form a chain. A collective waits for the computations before it, and all later items wait for
it, unless it has a key: then only the items that need the key, and the next collective of its family, wait for it.
Items may need keys of their own block; other keys become ports of the block, which each stamp connects to rows.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import Message as Attribute

from nadi.et import Block, NodeType, attribute
from nadi.inputs.limits import MAX_BYTES
from nadi.workload.compute.operators import PRODUCTS, Operator, format_operators
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.training.item_lists import Compute, GroupCollective, Item, Memory, RingMessage

COMPUTED, OWN, EXCHANGED = "computed", "own", "exchanged"
"""Ports: the last computation, and the sends for which the next one waits; in a pass that alternates with another pass,
the rows for which its next computation waits, and the last exchange of tokens of either pass."""
EXCHANGES = ("ep", "ep-domain", "ep-network")
"""Families that exchange tokens of experts; passes that alternate do so one at a time, by one stream."""
QUEUED = (
    *("dp", "edp", "dp-other", "edp-other"),
    *("dp-shard", "edp-shard", "dp-replicate", "edp-replicate"),
)
"""Families, and ports, whose collectives run one at a time across blocks."""
_MAX_INTEGER = 2**63 - 1  # Maximum of the integer attributes of a trace's node (int64)
_ON_HOST = 1  # tensor_loc of a tensor in the host's memory


class Ring(NamedTuple):
    """Numbers of the NPUs after and before the trace's example NPU in the ring of context parallelism."""

    after: int  # NPU that comes next in the ring
    before: int  # NPU that comes before


NO_RING = Ring(-1, -1)
_STAGES, _RING = "pp", "cp"
"""Families whose communicators carry messages: between pipeline stages, and in the ring of context parallelism."""


class BlockLink(Enum):
    """What the blocks of a pass that alternates with another pass wait for, and what waits for them."""

    BOTH = "both"  # Computations: they wait for the GPU's last one and for their own pass, and both wait for them
    GATE = "gate"  # The same, and the next computations of the GPU wait for their messages, too
    BESIDE = "beside"  # Work beside the GPU's computations: it waits for its own pass, which alone waits for it
    GPU = "gpu"  # Gradients of weights: they wait for the GPU's last computation, and its next one waits for them

    @property
    def ports(self) -> list[int | str]:
        """Ports for whose rows the first rows of the block wait."""
        computed: list[int | str] = [] if self == BlockLink.BESIDE else [COMPUTED]
        return computed if self == BlockLink.GPU else [*computed, OWN]


class FinishedBlock(NamedTuple):
    """A block, and those of its rows that rows of later blocks wait for."""

    block: Block  # Rows of the block
    ports: frozenset[str]  # Names of the ports that a stamp may connect
    ends: tuple[int, ...]  # Rows that must end before the next computation
    computed: int  # Row of the last computation, -1 = no computation
    sent: tuple[int, ...]  # Rows of sends that may have to end before the next computation
    last: Mapping[str, int]  # Row of the last collective by family of QUEUED
    keys: Mapping[str, int]  # Row of a collective, message or transfer by the key that later blocks may need
    place: int  # Position among the blocks of both passes if two alternate
    link: BlockLink  # Connection with blocks of the other pass if two alternate
    host: int  # Row of the last computation of the host, -1 = none
    exchanged: tuple[int, ...]  # Rows that exchange tokens of experts


class BlockBuilder:
    """Builder of the blocks of a pass from its items."""

    def __init__(self, ring_neighbours: Ring = NO_RING, *, cuts: bool = False) -> None:
        """Begin the first block.

        Args:
            ring_neighbours: The neighbours of the NPU in the ring of context parallelism.
            cuts: Whether the blocks are stamped alternately with those of another pass, so that `begin` cuts them.
        """
        self._ring, self._cuts = ring_neighbours, cuts
        self._finished: list[FinishedBlock] = []
        self._begin(0, BlockLink.GATE, [COMPUTED])

    def begin(self, place: int, link: BlockLink) -> None:
        """Begin a block unless the one before has the same place, or all of the pass is one block.

        Args:
            place: The position of the block among those of both passes, as of those before or later.
            link: The connection of the block with those of the other pass.
        """
        if self._cuts and (place, link) != (self._place, self._link):
            self.finish()
            self._begin(place, link, link.ports)

    def _begin(self, place: int, link: BlockLink, parents: list[int | str]) -> None:
        """Begin a block whose first rows wait for these parents, rows or ports."""
        self._place, self._link = place, link
        self._block = Block()
        self._ports: set[str] = set()
        self._chain = parents
        self._keys: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._sent: list[int] = []
        self._exchanged: list[int] = []
        self._computed = self._host = -1
        self._open: list[Compute] = []
        self._open_after: tuple[str, ...] = ()
        self._open_layer = ""
        self._open_attributes: list[Attribute] = []

    def add(self, layer: str, items: Iterable[Item]) -> None:
        """Add items of a layer.

        Args:
            layer: The prefix of the items' names, for example "layer17"; "" = outside layers.
            items: The items of a part of a pass, in order.
        """
        for item in items:
            if isinstance(item, Compute):
                self._compute(layer, item)
            elif isinstance(item, GroupCollective):
                self._collective(layer, item)
            elif isinstance(item, RingMessage):
                self._message(layer, item)
            else:
                self._memory(layer, item)

    def wait(self, keys: Iterable[str]) -> None:
        """Make the next computation wait for collectives, messages or transfers.

        Args:
            keys: The keys of items of this block or of other blocks, or names of ports.
        """
        awaited = [self._keys.get(key, key) for key in keys]
        if awaited:
            self._flush()
            self._chain += awaited

    def receive(self, name: str, size_bytes: int, peer: int, tag: int, after: Iterable[str] = ()) -> None:
        """Add a receive, before the next computation.

        Args:
            name: The name of the row.
            size_bytes: The size of the message in bytes.
            peer: The number of the sending NPU.
            tag: The tag of the message.
            after: The ports that the receive waits for.
        """
        self._flush()
        size_bytes = _bounded(name, "bytes", size_bytes, MAX_BYTES)
        row = self._block.recv(name, size_bytes, peer=peer, tag=tag, group=_STAGES, after=self._noted(after))
        self._chain.append(row)

    def send(self, name: str, size_bytes: int, peer: int, tag: int) -> None:
        """Add a send, which waits for the computations so far.

        Args:
            name: The name of the row.
            size_bytes: The size of the message in bytes.
            peer: The number of the receiving NPU.
            tag: The tag of the message.
        """
        self._flush()
        after = self._noted(self._chain)
        self._sent.append(self._block.send(name, size_bytes, peer=peer, tag=tag, group=_STAGES, after=after))

    def note(self, attribute_name: str, text: str) -> None:
        """Add an attribute, a list of one text, to the computation that was added last.

        Args:
            attribute_name: The name of the attribute.
            text: The value of the attribute.
        """
        self._open_attributes.append(attribute(attribute_name, "string_list", [text]))

    def end_row(self) -> None:
        """Let the next computation begin a row of its own."""
        self._flush()

    def finish(self) -> list[FinishedBlock]:
        """Return the blocks that have rows; at most one unless `cuts`."""
        self._flush()
        ends = tuple(row for row in self._chain if isinstance(row, int))
        ports = frozenset(self._ports)
        if len(self._block):
            last = {family: row for family, row in self._last.items() if family in QUEUED}
            rest = self._place, self._link, self._host, tuple(self._exchanged)
            own = FinishedBlock(self._block, ports, ends, self._computed, tuple(self._sent), last, self._keys, *rest)
            self._finished.append(own)
        return self._finished

    def _compute(self, layer: str, item: Compute) -> None:
        """Add a computation to those of the row that is open, or begin another row."""
        if not item.operators and not item.on_host_micros:
            return
        if item.key:
            self._beside(layer, item)
            return
        if item.needs or layer != self._open_layer or item.on_host_micros:
            self._flush()
            self._open_after = item.needs
            self._open_layer = layer
        self._open.append(item)
        if item.on_host_micros:
            self._flush()

    def _beside(self, layer: str, item: Compute) -> None:
        """Add the row of a computation of the host beside those of the accelerator."""
        self._flush()
        row = self._block.comp(
            _path(layer, item.name),
            num_ops=0,
            tensor_size=0,
            is_cpu_op=True,
            duration_micros=item.on_host_micros,
            after=self._noted([*self._chain, *item.needs]),
        )
        self._keys[item.key] = row

    def _flush(self) -> None:
        """Add one row for the consecutive computations so far.

        Its name is that of the computation with the largest number of operations.
        """
        if not self._open:
            return
        total = _total(tuple(operator for item in self._open for operator in item.operators))
        # A row that merges computations has the name of the one that takes the most operations or bytes
        name = max(self._open, key=lambda item: _total(item.operators)[:2]).name
        row = self._block.comp(
            _path(self._open_layer, name),
            num_ops=_bounded(name, "operations", total.flops, _MAX_INTEGER),
            tensor_size=_bounded(name, "bytes", total.bytes, _MAX_INTEGER),
            operators=total.text,
            is_cpu_op=any(item.on_host_micros for item in self._open),
            duration_micros=sum(item.on_host_micros for item in self._open),
            after=self._noted([*self._chain, *self._open_after]),
            attrs=self._open_attributes,
        )
        if any(item.on_host_micros for item in self._open):
            self._host = row
        self._chain, self._open, self._open_after, self._open_attributes = [row], [], (), []
        self._computed = row

    def _collective(self, layer: str, item: GroupCollective) -> None:
        """Add the row of a collective, which waits for earlier ones of its family if these are queued; none for ""."""
        if not item.family:
            return
        self._flush()
        after: list[int | str] = [*self._chain, *item.needs]
        # Collectives of one communicator run one at a time, so each waits for the one before it
        if item.family in QUEUED or item.family in self._last:
            after.append(self._last.get(item.family, item.family))
        is_exchange = self._cuts and item.family in EXCHANGES
        if is_exchange:
            after.append(EXCHANGED)
        row = self._block.coll(
            _path(layer, item.name),
            item.kind,
            _bounded(item.name, "bytes", item.bytes, MAX_BYTES),
            group=item.family,
            in_split_size=item.splits[0],
            out_split_size=item.splits[1],
            after=self._noted(after),
        )
        if item.family in QUEUED or item.key:
            self._last[item.family] = row
        else:
            # All later items wait for this collective, so that no later one of its family needs a dependency of its own
            self._last.pop(item.family, None)
        if is_exchange:
            self._exchanged.append(row)
        if item.key:
            self._keys[item.key] = row
        else:
            self._chain = [row]

    def _message(self, layer: str, item: RingMessage) -> None:
        """Add the row of a message along the ring of context parallelism."""
        self._flush()
        after = self._noted(item.needs if item.is_early else [*self._chain, *item.needs])
        name, size = _path(layer, item.name), _bounded(item.name, "bytes", item.bytes, MAX_BYTES)
        if item.receives:
            row = self._block.recv(name, size, peer=self._ring.before, tag=item.tag, group=_RING, after=after)
        else:
            row = self._block.send(name, size, peer=self._ring.after, tag=item.tag, group=_RING, after=after)
        if item.key:
            self._keys[item.key] = row

    def _memory(self, layer: str, item: Memory) -> None:
        """Add the row of a transfer from or to the host's memory."""
        self._flush()
        kind = NodeType.MEM_LOAD_NODE if item.loads else NodeType.MEM_STORE_NODE
        after = self._noted([*self._chain, *item.needs])
        size = _bounded(item.name, "bytes", item.bytes, _MAX_INTEGER)
        row = self._block.mem(_path(layer, item.name), kind, size, tensor_loc=_ON_HOST, after=after)
        if item.key:
            self._keys[item.key] = row
        elif item.loads:
            self._chain = [row]

    def _noted(self, all_parents: Iterable[int | str]) -> list[int | str]:
        """Return distinct parents, with rows of the block for its own keys, and record their ports as the block's."""
        parents = list(dict.fromkeys(self._keys.get(p, p) if isinstance(p, str) else p for p in all_parents))
        self._ports.update(parent for parent in parents if isinstance(parent, str))
        return parents


def _bounded(name: str, quantity: str, value: int, maximum: int) -> int:
    """Return a value that a node of a trace can hold; WorkloadError with node and quantity for a larger one."""
    if value > maximum:
        raise WorkloadError(
            f"{name}: {value:.3g} {quantity} in a node, expected {maximum} at most: fewer tokens or more GPUs"
        )
    return value


class _Total(NamedTuple):
    """Totals of a node's operators: floating-point operations, bytes, and attribute text."""

    flops: int  # floating-point operations
    bytes: int  # bytes of memory traffic
    text: str  # text of the attribute that lists the operators


@lru_cache(maxsize=1 << 14)
def _total(operators: tuple[Operator, ...]) -> _Total:
    """Return the sums of operators' operations (of products) and bytes, and their text."""
    flops = sum(operator.flops for operator in operators if operator.kind in PRODUCTS)
    size = sum(operator.bytes for operator in operators)
    return _Total(flops, size, format_operators(operators))


def _path(layer: str, name: str) -> str:
    return f"{layer}/{name}" if layer else name
