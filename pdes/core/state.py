"""Every array of a world with its shape, unit and owner; `pdes.core.rows` declares rows with named words.

A world is the state of one logical process, which shares none of it. Data used together is adjacent, in rows that fill
cache lines.

Kernels take parts of a world as parameters with the names of its fields (`net`, `npus`, `qps` and so on). These
parameters recur, too:

    world_address        address of the directory of the LP's `World` (`world_at`)
    node                 number of a node in the LP, in which NPUs come first
    link                 outgoing link: row of `net.tx`, in which the ports of NPUs come first
    pair                 row of a queue pair in `qps.qp`; at message level, a connection
    inst, instance       row of a collective under way in `insts.inst`
    row                  trace row of an NPU, counted from the first of its trace
    group, seq           number of a group, and of a collective among those of the group
    word1, word2, word3  words of a packet (pdes/core/packet.py); `tag` is word 3 of the packets of a message
    now_ps               current time in ps; begin_ps, end_ps: begin and end of the current cell
"""

from typing import Annotated, NamedTuple

import numpy as np

from nadi.pdes.core.jit import inline, reader, seen_as
from nadi.pdes.core.rows import (
    ALONE,
    BUILT,
    EMPTY,
    INF,
    OWN_WAY,
    REMADE,
    Each,
    RowsOf,
    WordKind,
    messages,
    network,
    npu,
)
from nadi.pdes.core.rows.run import ClassMarks, Constants, ControlParameters, Counters, Hooks, Scalars

Int64 = Annotated[np.ndarray, np.int64]
Int32 = Annotated[np.ndarray, np.int32]
Int8 = Annotated[np.ndarray, np.int8]
Float64 = Annotated[np.ndarray, np.float64]
Bool = Annotated[np.ndarray, np.bool_]

LANES_EACH = Each("lane_stride")

LONGEST_RUN_PS = INF >> 1  # 26 days: a longer run, or any one step of that length, might reach INF, which means never
PS_PER_S = 1e12  # the engine imports nothing but `compiling`, so it has its own; all else takes inputs.units
PS_PER_BYTE_AT_1_BPS = 8 * PS_PER_S  # divided by a rate in bit/s, the picoseconds per byte at that rate

DONE, FULL, FAILED, GOING_ON, SENT = range(5)
"""What kernels return. DONE: nothing is left; FULL: a pool is full (make room, call again); FAILED: a queue pair gave
up; GOING_ON: within a window; SENT: within a window, everything for other teams is sent, and some nodes have not acted.
"""

MAX_NODES = MAX_LINKS = 1 << 22  # bounds of node and link numbers, from the widths in pdes.core.packet
MAX_SET = 511  # maximum number of equal-cost links: the count must fit beside 22 bits in an int32 cell

SIDES = 4  # inboxes of a node: one for the current cell and one for each of the next three; a power of two

BLOCK_RECORDS = 8
BLOCK_SHIFT = 3  # packet records come in blocks of BLOCK_RECORDS = 1 << BLOCK_SHIFT

CARE, FRAMED, INSIDE, AMPLE, CIRCUIT, RISES, COUNTED = 1, 2, 4, 8, 16, 32, 64
"""Flags of a link class. CARE: packets may be lost, carry telemetry, or are sampled; FRAMED: the link carries flits;
INSIDE: the link is NVLink that leads to NPUs of its domain alone: no congestion control, no share for other hosts;
AMPLE: the link of an aggregator, which is faster than all other links of its switch together and so limits no flow;
CIRCUIT: an optical switch decides when the link carries packets (pdes/network/circuits.py);
RISES: packets from its other direction go on in the next lane (`Routing.rising_links`); COUNTED: bytes by job.
"""
MAX_CLASSES = 1 << 16
CONTROL, FRAMES, TRIMMED = 8, 9, 10  # queues of a gate after those of the 8 data classes

FLOWLETS = 1024  # flows that a switch distinguishes by a hash

# Events that congestion control handles (pdes/nic/congestion), those without a packet first.
CC_START, CC_REST, CC_SENT, CC_ACK, CC_CNP, CC_LOSS = range(6)
LOSS_NAK, LOSS_TIMEOUT, LOSS_TRIMMED = range(3)
# Operations of the hook of credits (pdes/nic/receiver_credits.py).
CREDIT_BEGIN, CREDIT_SPEND, CREDIT_HEAR, CREDIT_CONTROL, CREDIT_RECEIVE, CREDIT_PACE, CREDIT_REQUEST = range(7)

TELEMETRY_CLASS_SHIFT, TELEMETRY_QUEUE_SHIFT, MAX_TELEMETRY_HOPS = 46, 34, 7

REF_LANE, REF_INSTANCE = 40, 1 << 61

SELECTIVE_PACKETS = 512  # packets that a bit set of selective repeat covers

# What happens to the paths of a queue pair (pdes/nic/paths.py).
PATH_SEND, PATH_ANSWER, PATH_LOST, PATH_TIMEOUT, PATH_TO_PROBE = range(5)
PATH_CHOOSE, PATH_GOOD, PATH_MARKED, PATH_TRIMMED, PATH_DROPPED, PATH_TIMED_OUT, PATH_FORGET, PATH_PROBE = range(8)
PATH_DENIED = -128  # penalty of a path that is never in use, and so never changes; others below 0 end with probes
MAX_PATHS = 256  # entropies of a queue pair: up to which Ultra Ethernet and MRC go

PENDING_LANES = 62  # lanes of a plan that a bit set covers; with more lanes, all are checked each time

LANES, COMPUTE_LANE, REMOTE_LANE = 4, 1, 3

SLOWDOWN_UNIT = 1000  # units of slow_1000ths per factor 1

# progress of an active collective: its steps may run; its first step is due later; 0: only messages have arrived
STARTED, LAUNCHING = 1, 2

# Flags of a trace row on an NPU (`row_flag`).
ROW_ARRIVED = 1  # its message has come
ROW_POSTED = 2  # its receive has been posted
ROW_READY = 4  # a collective whose turn in its group, or among those in flight, has not come
ROW_STARTED = 8
ROW_DONE = 16
ROW_ASKED = 32  # its sender has asked to send
ROW_CALLED = 64  # a collective that starts without waiting for a place among those in flight

NEED_BLOCKS, NEED_MSGS, NEED_QPS, NEED_RXQPS, NEED_INSTS, NEED_FLOWS, NEED_EVENTS, NEED_HOPS, NEED_REPLAY = range(1, 10)
NEED_SAMPLES = 10


class Routes(NamedTuple):
    """Routing state. A cell is a port set: links << 22 | first; with one link, `first` is that link itself."""

    node: Annotated[np.recarray, network.Forwarding, BUILT]  # rows: how a node forwards
    cell: Annotated[Int32, BUILT]  # table mode: stretches of rows; dimension mode: sets
    attach: Annotated[Int32, BUILT]  # [npus * homes] cell from a home to the NPU
    home: Annotated[Int32, BUILT]  # [npus * homes] column, -1 none
    link: Annotated[Int32, BUILT]  # members of the sets that have several, from the node's first outgoing link on
    hops: Annotated[Int8, BUILT]  # table mode, several homes: switches to the home, [rows x homes]
    hop_row: Annotated[Int64, BUILT]  # [nodes and what `via` needs beyond] offset of the node's row in `hops`
    hop_column: Annotated[Int32, BUILT]  # likewise: home column of a switch, -1 none
    only_home: Annotated[Int32, BUILT]  # likewise: which of an NPU's homes can be reached from there, -1 several
    # two words of a rule of load balancing by hash of flow or by destination
    flowlet: Annotated[Int64, RowsOf.NODE, Each(2 * FLOWLETS)]
    host: Annotated[Int32, BUILT]  # [npus of the fabric] its host
    rule: Annotated[Int8, BUILT]  # [nodes] load balancing of the node's tier, where tiers differ
    via: Annotated[Int32, BUILT]  # [ports] table mode, NPUs of several: entry of `hop_row` of the switch at the end
    share: Annotated[Int32, BUILT]  # [ports] likewise: the port's share of its NPU's connections, `Graph.port_shares`
    # detours (pdes/network/detours): groups of switches, and homes over which packets may go, as columns
    group: Annotated[Int32, BUILT]  # [nodes] group of a switch, -1 none
    column_group: Annotated[Int32, BUILT]  # [homes of the fabric] group of each home
    detour: Annotated[Int32, BUILT]  # columns of the homes over which detours may lead, by what paths join, and group
    own_homes: Annotated[Int32, BUILT]  # [nodes * 4] first and last + 1 entry of `detour`: own group, all joined
    near_ptr: Annotated[Int32, BUILT]  # [nodes + 1] entries of `near` of each switch
    near: Annotated[Int32, BUILT]  # for each link to another group, the column of a home of that group
    switch_row: Annotated[Int64, BUILT]  # [nodes] offset of the switch in `switch_hops`
    switch_hops: Annotated[Int8, BUILT]  # links from own switches to each home
    home_hops: Annotated[Int8, BUILT]  # [homes * homes] links from home to home, with groups one less
    # source routes (pdes/network/detours/source.py)
    listed_ptr: Annotated[Int32, BUILT]  # [nodes + 1] entries of `listed_pair` of each switch
    listed_pair: Annotated[Int64, BUILT]  # pairs whose paths cross the switch, ascending, as in word 1 of packets
    listed_cell_ptr: Annotated[Int32, BUILT]  # [pairs + 1] entries of `listed_cell` of each of these
    listed_cell: Annotated[Int32, BUILT]  # cell of each path of the pair, -1 = as the tables say
    here: Annotated[Int32, BUILT]  # [nodes * D] own coordinates
    digit: Annotated[Int32, BUILT]  # [npus of the fabric * D]
    mode: Annotated[Int8, BUILT]  # [nodes * D]
    offset: Annotated[Int64, BUILT]  # [nodes * D]
    size: Annotated[Int64, BUILT]  # [D]


class Trace(NamedTuple):
    """The distinct traces, read only (docs/reference/interfaces.md, workload.Program)."""

    kind: Int8
    lane: Int8
    duration_ps: Int64
    bytes: Int64
    peer: Int32
    tag: Int32
    seq: Int32
    group: Int32
    schedule: Int32
    channel: Int32
    priority: Int32
    child_ptr: Int64
    child: Int32
    recv_ptr: Int64
    recv_key: Int64
    recv_node: Int32
    trace_slot_ptr: Int64
    coll_ptr: Int64
    coll_node: Int32
    connections: Int64  # [channels] P2P with number and share of messages between two NPUs (pdes.core.packet)


class PlanTables(NamedTuple):
    """Groups and the schedules of collectives, read only (docs/reference/interfaces.md, workload.Schedules)."""

    slot_group: Int32  # of local NPUs
    slot_member: Int32
    group_ptr: Int64
    group_member: Int32
    members: Int32
    chunks: Int32
    relative: Bool
    plan_of_ptr: Int64
    plan_of: Int32
    list_first: Int32  # [rows of plan_of] first entry of the member's list in peer_list, -1 steps name members
    peer_list: Int32  # peers, and lanes of these, that steps of shared plans name by index
    plan_ptr: Int32
    lane_ptr: Int32
    step: Annotated[np.recarray, npu.PlanStep]
    launch_ps: Int64  # [schedules]
    lane_row: Annotated[np.recarray, npu.PlanLane]  # rows, by lane
    view_row: Annotated[np.recarray, npu.GroupView]  # rows
    view_member: Int32  # the lines of a view, one after another
    view_at: Int32  # by member: where it stands in them
    view_part: Int32  # by member


class JobTables(NamedTuple):
    """The jobs of the run: programs that share the fabric. Where there are several, the last row is for no job."""

    who: Annotated[Int64, BUILT]  # [npus of the fabric] rank within its job | job << 20 (pdes.core.packet)
    npu: Annotated[Int32, BUILT]  # [npus of the fabric] NPUs of the ranks of all jobs, job by job
    group: Annotated[Int32, BUILT]  # [groups] number of the group within its job
    total: Annotated[np.recarray, npu.JobTotal, RowsOf.LP, OWN_WAY]  # rows
    # [rows of tx x rows of total] bytes of each job on the link; [1] of one job
    link_bytes: Annotated[Int64, RowsOf.LINK, Each("jobs")]


class Net(NamedTuple):
    """Nodes, sending sides of links and packets, with the scalars that all use."""

    ctl: Annotated[np.record, Scalars, RowsOf.LP, OWN_WAY]
    count: Annotated[np.record, Counters, RowsOf.LP, OWN_WAY]  # type: ignore[assignment] # a column, not the method of tuples
    const: Annotated[np.record, Constants, BUILT]
    hooks: Annotated[np.record, Hooks, BUILT]
    next_time: Annotated[Int64, RowsOf.NPU, WordKind.TIME]  # ps: earliest event of its own
    inbox: Annotated[Int32, RowsOf.NODE, OWN_WAY]  # [x SIDES x 2] first record and next free one of each, -1 empty
    waiting: Annotated[Int64, RowsOf.LINK, REMADE]  # [links / 32] bit set: packets wait on the link for a later cell
    wait_head: Annotated[Int32, RowsOf.LINK, OWN_WAY]  # record, -1 none waits; then those from other LPs
    wait_tail: Annotated[Int32, RowsOf.LINK, OWN_WAY]
    out_ptr: Annotated[Int64, BUILT]  # [nodes + 1] outgoing links of a node
    tx: Annotated[np.recarray, network.OutgoingLink, RowsOf.LINK]  # then those that come from other LPs (`meta` only)
    link_class: Annotated[np.recarray, network.LinkClass, ALONE]
    tx_dropped: Annotated[Int64, RowsOf.LINK]  # packets
    circuit: Annotated[Int64, BUILT]  # [rows of tx] where there are circuits: place of the link's windows in `lit`
    lit: Annotated[Int64, BUILT]  # windows of circuits (pdes/network/circuits.py)
    record: Annotated[np.recarray, network.PacketRecord, RowsOf.BLOCK, OWN_WAY]
    block_next: Annotated[Int32, RowsOf.BLOCK, REMADE]
    block_free: Annotated[Int32, RowsOf.BLOCK, REMADE]  # stack
    far: Annotated[Int64, BUILT]  # [outgoing links] names of links to other LPs (`Part.far`)
    ghost: Annotated[Int64, BUILT]  # [lists] `tx` row of the first link that comes from the neighbours of the list
    outbox: Annotated[Int64, BUILT]  # what goes to other LPs (pdes/core/packet.py)
    out_at: Annotated[Int64, BUILT]  # [lists x 2] where the halves of a list begin in the outbox
    in_at: Annotated[Int64, BUILT]  # [lists x 2] addresses of the halves for this LP
    gate: Annotated[np.recarray, network.Gate, RowsOf.LINK]
    # where there are credits: virtual lanes of each link, then the two queues of control of its port
    lane: Annotated[np.recarray, network.VirtualLane, RowsOf.LINK, Each("queues")]
    lane_weight: Annotated[Int64, BUILT]  # in a turn: [virtual lanes] bytes; [data classes] as the discipline means it
    class_marks: Annotated[np.recarray, ClassMarks, BUILT]  # [data classes] where marks differ by class
    group_class: Annotated[Int8, BUILT]  # [groups] data class of the messages of each
    p2p_class: Annotated[Int8, BUILT]  # [own NPUs] data class of the point-to-point messages that each sends
    pool: Annotated[np.recarray, network.SwitchBuffer, RowsOf.NODE]
    backlog: Annotated[Int32, RowsOf.LINK, OWN_WAY]  # for each node, its ports where something waits
    facing: Annotated[Int32, BUILT]  # [links of the fabric] own outgoing link whose reverse it is
    depth: Annotated[Int32, RowsOf.LINK, OWN_WAY]  # [x columns] most bytes that waited in a stretch of time
    marks: Annotated[Int32, RowsOf.LINK, OWN_WAY]  # likewise, packets that the port marked, where there is ECN
    sample: Annotated[np.recarray, network.LinkSample, RowsOf.LINK]  # where links are sampled
    sample_log: Annotated[np.recarray, network.SampleEntry, EMPTY]  # entries, filled from the end
    # [pauses x 2] ps, link in the fabric << 4 | data class << 1 | 1 for a pause
    pause_log: Annotated[Int64, RowsOf.LP, OWN_WAY]
    telemetry: Annotated[np.recarray, network.Telemetry, RowsOf.BLOCK, OWN_WAY]  # where packets carry it
    carried: Annotated[np.record, network.Telemetry, EMPTY]  # one row: of the packet in hand
    # records that arrive in the cell, NPU by NPU in order, where there are flows too
    ordered: Annotated[Int32, RowsOf.BLOCK, EMPTY]
    held_block: Annotated[Int32, RowsOf.BLOCK, EMPTY]  # blocks of these records
    counts: Annotated[np.recarray, network.NodeCounts, RowsOf.NODE]
    port_ties: Annotated[np.recarray, network.PortTies, RowsOf.LINK]
    mark_draws: Annotated[np.recarray, network.MarkDraws, RowsOf.LINK]  # where switches mark packets
    queue_log: Annotated[np.recarray, network.QueueLog, RowsOf.LINK]  # where there is `Constants.routing_delay_ps`
    published_ps: Annotated[Int64, RowsOf.LINK, EMPTY]  # work of ports at the cell's begin, where rules read others
    jobs: JobTables


class Inbox(NamedTuple):
    """Rates of incoming links, and the batch of arrivals of the current node."""

    rx_psb: Float64  # [links of the fabric] ps per byte, where a switch cuts through
    batch_key: Int64  # [batch] (time - window start) << 16 | index
    batch_tmp: Int64
    batch_pos: Int64  # [batch] record
    batch_out: Int64  # [batch] outgoing link, in the order of the keys
    batch_near: Int64  # [batch] record of each packet for an inbox of the LP
    batch_box: Int64  # [batch] that inbox
    batch_apart: Int64  # [batch] record of each that goes to another LP, and from the end back, that waits on its link
    batch_link: Int64  # [batch] that link
    batch_ready: Int64  # [batch] when the packet is at its end
    grades: Int8  # [maximum of equal links] grade of each, while a packet chooses
    batch_freed: Int64  # [batch] blocks to give back after the batch
    bucket: Int64


class Npus(NamedTuple):
    """NPUs, their ports and their own events."""

    npu: Annotated[np.recarray, npu.Npu, RowsOf.NPU]
    port: Annotated[np.recarray, network.Port, RowsOf.PORT]
    nic: Annotated[np.recarray, network.NicPort, RowsOf.PORT]  # where NICs have several ports for one queue pair
    heap: Annotated[Int64, RowsOf.NPU, OWN_WAY]  # [2 x slots of all NPUs] (ps, slot) pairs, pdes/core/algorithms.py
    token: Annotated[np.recarray, npu.Tokens, RowsOf.NPU, Each("gated_dimensions")]
    system: Annotated[np.recarray, npu.System, RowsOf.NPU]
    turns: Annotated[np.recarray, npu.Turns, RowsOf.NPU]  # where they run one row of each kind at a time
    pacer: Annotated[np.recarray, npu.CreditPacer, RowsOf.NPU]  # where receivers give credits
    memory: Annotated[np.recarray, npu.SharedMemory, RowsOf.NPU, ALONE]  # where NPUs share remote memories
    busy: Annotated[Int32, RowsOf.NPU, EMPTY]  # those to which something happens in the cell in hand


class Qps(NamedTuple):
    """Queue pairs, messages and flow records."""

    # Maps (pdes/core/algorithms.py): keys int64 (-1 free), values int64, a power of two long.

    qp: Annotated[np.recarray, network.QueuePair, RowsOf.PAIR]
    msg: Annotated[np.recarray, network.Message, RowsOf.MESSAGE, OWN_WAY]
    msg_free: Annotated[Int64, RowsOf.MESSAGE, REMADE]  # stack
    rxqp: Annotated[np.recarray, network.Receiver, RowsOf.RECEIVER]  # a map itself, by dst << 44 | src << 24 | qp
    flow_out: Annotated[np.recarray, network.FlowOut, EMPTY]
    flow_in: Annotated[np.recarray, network.FlowIn, EMPTY]
    qp_key: Annotated[Int64, RowsOf.PAIR, OWN_WAY]  # src << 44 | dst << 25 | connection -> qp
    qp_val: Annotated[Int64, RowsOf.PAIR, OWN_WAY]
    cc: Annotated[np.recarray, network.CongestionState, RowsOf.PAIR]
    par: Annotated[np.recarray, ControlParameters, BUILT]  # one row
    resends: Annotated[np.recarray, network.Resends, RowsOf.PAIR]  # where switches trim packets
    sel_tx: Annotated[np.recarray, network.Selective, RowsOf.PAIR]
    sel_rx: Annotated[np.recarray, network.Selective, RowsOf.RECEIVER]
    sent_at: Annotated[Int64, RowsOf.PAIR, Each(SELECTIVE_PACKETS)]  # where receivers coalesce acknowledgements
    credit_tx: Annotated[np.recarray, network.SendCredit, RowsOf.PAIR]  # where receivers give credits
    credit_rx: Annotated[np.recarray, network.ReceiveCredit, RowsOf.RECEIVER]
    paths: Annotated[np.recarray, network.PairPaths, RowsOf.PAIR]  # where senders choose entropies
    penalty: Annotated[Int8, RowsOf.PAIR, Each("paths")]  # of each path of a queue pair, as the entropy rule counts
    path_sent: Annotated[Int8, RowsOf.PAIR, Each(SELECTIVE_PACKETS)]  # path of each packet under way, where rules learn
    path_good: Annotated[Int8, RowsOf.PAIR, Each(SELECTIVE_PACKETS)]  # queue of good paths, where rules use them again
    # ps: when the latest message is in, or has left if limited to a share, at message level
    arrived: Annotated[Int64, RowsOf.PAIR, ALONE]
    begun: Annotated[Int64, RowsOf.RECEIVER]  # where the message in hand begins, where reductions take time


class RowStates(NamedTuple):
    """Trace rows of every NPU, and the progress of its groups."""

    state: Annotated[Int32, RowsOf.ROW]  # parents left; once ready, the next row of its list
    flag: Annotated[Int8, RowsOf.ROW]  # ROW_*
    start: Annotated[Int64, RowsOf.ROW, WordKind.TIME]  # ps
    finish: Annotated[Int64, RowsOf.ROW, WordKind.TIME]
    slot_next: Annotated[Int32, RowsOf.SLOT]  # how many collectives of the group are done


class Insts(NamedTuple):
    """Active collectives."""

    inst: Annotated[np.recarray, npu.Instance, RowsOf.INSTANCE]
    inst_free: Annotated[Int64, RowsOf.INSTANCE, REMADE]  # stack
    lane: Annotated[np.recarray, npu.LaneState, RowsOf.INSTANCE, LANES_EACH, OWN_WAY]
    phase: Annotated[np.recarray, npu.CollectivePhase, RowsOf.INSTANCE, Each("phase_stride"), OWN_WAY]
    # 1 + the peer that a lane has called, where collectives wait for places
    called: Annotated[Int32, RowsOf.INSTANCE, LANES_EACH, OWN_WAY]
    asked: Annotated[np.recarray, npu.LaneRequest, RowsOf.INSTANCE, LANES_EACH, OWN_WAY]  # where messages are
    taken: Annotated[np.recarray, npu.LaneReductions, RowsOf.INSTANCE, LANES_EACH, OWN_WAY]  # where these take time
    inst_key: Annotated[Int64, RowsOf.INSTANCE, OWN_WAY]  # npu << 40 | group << 20 | seq -> inst
    inst_val: Annotated[Int64, RowsOf.INSTANCE, OWN_WAY]


class MessageModels(NamedTuple):
    """The message-level models (pdes/messages), and reductions (pdes/npu/delivery.py)."""

    event: Annotated[np.recarray, messages.Event, RowsOf.EVENT]  # rows, pdes/messages/events.py
    queue: Annotated[np.record, messages.EventQueue]  # what lists they are in
    same_time: Annotated[Int64, RowsOf.EVENT]  # heap of (order, event) of the moment in hand that are in none
    receive_ptr: Annotated[Int64, BUILT]  # [lanes of all plans + 1] receives of a lane in `reduces`
    reduces: Annotated[Int8, BUILT]  # 1: what is received is added to what is there
    memory_psb: Annotated[Float64, BUILT]  # [1] ps per byte of an NPU's memory


class Flows(NamedTuple):
    """The flow model (pdes/messages/rates.py)."""

    state: Annotated[np.record, messages.FlowState]
    flow: Annotated[np.recarray, messages.Flow, RowsOf.PAIR]
    hop: Annotated[np.recarray, messages.FlowHop, RowsOf.HOP]  # rows, consecutive for each connection
    hop_use: Annotated[np.recarray, messages.HopUse, RowsOf.HOP]
    hop_total: Annotated[np.recarray, messages.LinkTotal, RowsOf.HOP]  # of coupled flows
    link: Annotated[np.recarray, messages.FlowLink]  # [rows of tx]
    # [LINK_FLOWS_PER_HOP * rows of hop] consecutive for each link
    link_flow: Annotated[np.recarray, messages.LinkFlow, RowsOf.HOP]
    link_flow_hop: Annotated[Int32, RowsOf.HOP]  # [rows of link_flow] the flow's row of `hop`
    finish_heap: Annotated[np.recarray, messages.KeyedEntry, RowsOf.PAIR]  # connections by the end of their message, ps
    finish_place: Annotated[Int64, RowsOf.PAIR]  # places in finish_heap + 1, 0 = no message is under way
    dirty: Int64  # [rows of tx] links whose flows or capacity changed since the latest solution
    fresh: Annotated[Int64, RowsOf.PAIR]  # connections whose rate the next solution sets in any case
    reached_flow: Annotated[Int64, RowsOf.PAIR]  # connections of a solution
    fill_heap: Annotated[np.recarray, messages.KeyedEntry]  # [rows of tx] links by the rate of their next visit
    fill_place: Int64  # [rows of tx] places in fill_heap + 1, 0 = none
    front: Int64  # [nodes] nodes that packets reach, where they spread over equal links
    node_share: Int64  # [nodes] what part of the packets reaches them
    coupled: Annotated[np.recarray, messages.CoupledKind]  # collectives that are coupled flows, by group
    stage: Annotated[np.recarray, messages.CoupledStage, RowsOf.PAIR]
    lane: Annotated[np.recarray, messages.CoupledLane]  # rows, by lane of a member; members that do the same share them
    lane_first: Annotated[Int64, BUILT]  # [rows of plan_of] first row of `lane` of each member
    is_coupled: Int8  # [schedules] whether their collectives are coupled flows
    coupled_ptr: Int64  # [groups + 1] first row of `coupled` of a group
    link_total: Annotated[np.recarray, messages.LinkTotal]  # [rows of tx] of the coupled flow whose path is sought
    touched: Int64  # [rows of tx] its links
    # [groups + 1] whether messages of the group are flows, at the end point-to-point messages; [1] no
    by_flow: Int8
    turn: Annotated[np.recarray, messages.NpuTurn]  # [NPUs]
    # [NPUs] those that act in the cell, by their next action's time
    turn_heap: Annotated[np.recarray, messages.KeyedEntry]
    turn_place: Int64  # [NPUs] places in turn_heap + 1, 0 = none


CHANGE_LINK, CHANGE_NPU, CHANGE_PAUSE, CHANGE_ROUTES, CHANGE_CIRCUIT = range(5)


class FaultSchedule(NamedTuple):
    """Changes during the run, read only."""

    change: Annotated[np.recarray, network.Change]  # rows, in the order in which they are made
    table_node: Annotated[np.recarray, network.Forwarding]  # Routes' array of rows, for each set of routing tables
    table64: Int64  # Routes' arrays of that type, one after another, each for all sets of routing tables
    table32: Int32
    table8: Int8


class Domains(NamedTuple):
    """NVLink domains whose collectives are replayed (pdes/reuse_kernels/domains.py); roles and starts by group slot."""

    domain: Annotated[np.recarray, npu.ReplayedDomain, RowsOf.DOMAIN]
    member: Annotated[np.recarray, npu.DomainMember, RowsOf.NPU]  # where it has NVLink domains
    domain_of: Annotated[Int32, BUILT]  # [NPUs of the fabric] the LP's domain, -1 none
    node_of: Annotated[Int32, BUILT]  # [NPUs of the fabric] node of the LP, where it is in an NVLink domain
    role: Annotated[Int8, BUILT]  # [slots] of a group: OUTSIDE, CROSSING or INSIDE
    replays: Annotated[Int8, BUILT]  # [schedules] 1: may be replayed
    link: Annotated[Int32, BUILT]  # rows of `tx` of the NVLink domains' links
    start_ps: Annotated[Int64, RowsOf.SLOT, WordKind.TIME]  # when the NPU has started what waits for replay, -1 none
    start_row: Annotated[Int32, RowsOf.SLOT, WordKind.ROW]  # its trace row
    # number of starts before it; of an aggregator, its collectives that go by packets
    start_order: Annotated[Int64, RowsOf.SLOT]
    end_ps: Annotated[Int64, RowsOf.SLOT, WordKind.TIME]  # when the replayed collective ends, -1 none
    # 1 + row of a collective that sends packets over the domain's links, 0 none
    packet_row: Annotated[Int32, RowsOf.SLOT]
    started: Annotated[Int32, RowsOf.GROUP]  # members that have started the collective that waits to be replayed
    # [slots + groups + NPUs] groups for which there is something to replay; -1 - domain: it is disturbed
    due: Annotated[Int32, EMPTY]
    row_of: Annotated[Int32, BUILT]  # [links of the fabric] row of `tx`, -1 another LP's


class World(NamedTuple):
    """All state of one logical process. Functions take only the parts that they use."""

    net: Net
    inbox: Inbox
    npus: Npus
    qps: Qps
    rows: RowStates
    insts: Insts
    routes: Routes
    trace: Trace
    plans: PlanTables
    schedule: FaultSchedule
    messages: MessageModels
    flows: Flows
    nvlink: Domains


NOT_SAVED = frozenset({Inbox, Trace, PlanTables, FaultSchedule})  # BUILT as a whole, or empty between two cells
NOT_MOVED = frozenset({MessageModels, Flows})  # ALONE as a whole

world_at = reader(World)

whole_messages = seen_as(messages.WholeMessage)
requests = seen_as(network.PendingRequest)
asking = seen_as(network.QueuedRequest)
kept_messages = seen_as(network.KeptMessage)
later_messages = seen_as(network.LaterMessage)


@inline
def take_row(net, qps):
    """Take a free row of `msg` and return its number; the room is checked before the next event (`Scalars.check`).

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
    """
    free = net.ctl.free_messages - 1
    net.ctl.free_messages = free
    net.ctl.check = 1
    return np.int64(qps.msg_free[free])


@inline
def give_row_back(net, qps, row):
    """Return row number `row` of `msg` to the pool of free rows.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        row: Number of the row of `msg`.
    """
    qps.msg_free[net.ctl.free_messages] = row
    net.ctl.free_messages += 1
