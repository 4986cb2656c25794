"""The data dictionary: every array of a world, its shape, unit and owner.

A world is what one logical process holds: nothing in it is shared. State is rows of int64 words in flat arrays, a row
padded to whole cache lines, so that what is used together lies together: word C of row r of an array with W words a row
is `array[r * W + C]`. Where a word holds a float64, the same memory is seen through a second view (`link_classf`).
"""

from typing import Annotated, NamedTuple

import numpy as np

Int64 = Annotated[np.ndarray, np.int64]
Int32 = Annotated[np.ndarray, np.int32]
Int8 = Annotated[np.ndarray, np.int8]
Float64 = Annotated[np.ndarray, np.float64]
Bool = Annotated[np.ndarray, np.bool_]

INF = 1 << 62
LONGEST_RUN_PS = 1 << 61
"""26 days: what is longer, and with it any single step, might reach INF, which stands for never."""
"""Later than any time (ps)."""

MAX_NODES = 1 << 22
MAX_LINKS = 1 << 22
MAX_SET = 511

SIDES = 4
"""Inboxes of a node: for the cell in hand and for the three that follow. A power of two."""

# A packet record: four words, in blocks of eight records. See pdes/core/packet.py.
RECORD_WORDS = 4
BLOCK_RECORDS = 8
BLOCK_SHIFT = 3

# Sending side of a link (`tx`, one row per outgoing link in the order of its node).
TX_WORDS = 4
TX_BUSY = 0  # ps: the port sends until then
TX_META = 1  # receiving node | the link's number in the whole fabric << 22 | its class << 46;
# a node from the number of nodes on is the LP's neighbour of that number less the nodes
TX_BYTES = 2  # sent on the wire | upper 16 bits of the longest wait << BYTES_BITS
TX_PACKETS = 3  # sent | lower 28 bits of the longest wait of a packet for the port (ps) << PACKETS_BITS
BYTES_BITS = 46
PACKETS_BITS = 34

# What many links have in common (`link_class`).
CLASS_WORDS = 8
CLASS_PSB = 0  # float64 ps per byte, seen through link_classf
CLASS_DELAY = 1  # ps on the wire
CLASS_SEEN = 2  # bytes that the receiving node waits for before it forwards
CLASS_ERROR = 3  # a packet is lost if a 32-bit hash is below
CLASS_KMIN = 4  # bytes in the queue of the sending port: more are marked with some probability
CLASS_KMAX = 5  # bytes in the queue: as many or more are always marked
CLASS_PMAX = 6  # of 2^32: probability of a mark just below KMAX
CLASS_SPECIAL = 7  # bit set: CARE, packets may be lost on the link, or carry what they meet; FRAMED, it is NVLink
CARE, FRAMED = 1, 2
MAX_CLASSES = 1 << 16

# How a node forwards (`node`): one cache line.
NODE_WORDS = 8
NODE_ROW = 0  # table mode: where column 0 of the node's row would stand in `cell`
NODE_FIRST = 1  # columns from NODE_FIRST to before NODE_LAST have their own cells
NODE_LAST = 2
NODE_DEFAULT = 3  # cell of the other columns
NODE_SALT = 4  # 32-bit hash of (seed, node)
NODE_COLUMN = 5  # home column of a switch, -1 none
NODE_BASE = 6  # first outgoing link
NODE_FORWARD = 7  # ps from arrival to departure << 1 | 1 where the node cuts through

# The queues of a port of a switch that shares its buffer, and what its link lets in (`gate`, a row per outgoing link;
# of NPUs' ports only the pauses). Data classes are 0 and 1; see docs/fabric.md.
GATE_WORDS = 32
GATE_MASK = 0  # bit set of the queues where something waits
GATE_PAUSED = 1  # bit set of data classes that the other end has paused
GATE_QUEUED = 2  # 2 words: bytes that wait, by data class
GATE_LONGEST = 4  # most bytes that waited, both classes
GATE_QUEUES = 5  # 5 queues: first record | place behind the last << 32
GATE_PLACE = 10  # place in the node's list of ports where something waits
GATE_IN = 11  # 2 words: shared bytes that came in over the reverse link and have not left
GATE_HELD = 13  # 2 words: likewise, in the headroom
GATE_ASKED = 15  # bit set of data classes that the other end was asked to pause
GATE_HEADROOM = 16  # bytes for each class
GATE_MARKED = 17  # packets sent with a congestion mark
GATE_PAUSES = 18  # pause frames sent
GATE_TRIMMED = 19  # packets cut to their headers
GATE_PAUSED_PS = 20  # time for which a class was paused, in all
GATE_SINCE = 21  # 2 words: since when
GATE_TURN = 23  # weighted round robin: class whose turn it is | packets left of its turn << 1
GATE_TRIMMED_TURN = 24  # trimmed packets sent since the last data packet that waited, while one did
CONTROL = 2  # queue behind those of the data classes
FRAMES = 3  # queue of pause frames
TRIMMED = 4  # queue of packets cut to their headers

# A switch that shares its buffer (`pool`, a row per node).
POOL_WORDS = 8
POOL_USED = 0  # shared bytes in use
POOL_PORTS = 1  # ports where something waits
POOL_ASKED = 2  # pauses asked for and not taken back
POOL_SHARED = 3  # bytes to share

FLOWLETS = 1024
"""Flows that a switch tells apart by a hash."""

# An NPU's port (`port`, rows as in `tx`, which begins with the ports of the NPUs).
PORT_WORDS = 16
PORT_SCHEDULED = 0  # 1: an event waits in the heap for the port to fall idle
PORT_RING = 1  # last queue pair of the circular list of those that may send, -1 none
PORT_KICK_NEXT = 2  # next port in the NPU's list of ports to try, -2 not in the list
PORT_SENT_REF = 3  # who waits for the last byte of the packet on the wire, -1 nobody
PORT_CTRL_COUNT = 4  # acknowledgements that wait, sent first
PORT_TRANSIT_COUNT = 5  # packets of others that wait on their way through
PORT_TURN = 6  # 1: transit has the next turn against the queue pairs
PORT_CTRL_TAIL = 7  # record
PORT_CTRL_HEAD = 8
PORT_TRANSIT_HEAD = 9
PORT_TRANSIT_TAIL = 10
PORT_TRANSIT_BYTES = 11
PORT_PACED = 12  # of those that pacing holds back the queue pair that may send soonest, -1 none
PORT_PACE_AT = 13  # ps: the port's pacing event in the heap, INF none

# A sending queue pair (`qp`).
QP_WORDS = 24
QP_NEXT = 0  # sequence number of the next packet to send
QP_UNA = 1  # first not acknowledged
QP_END = 2  # first not posted
QP_SENT_MAX = 3  # first sequence number never sent
QP_CUR_END = 4  # sequence number after the message of QP_NEXT
QP_HEAD_END = 5  # sequence number after the oldest message
QP_ACTIVE = 6  # 1: in its port's list; 2: held back by pacing
QP_RING_NEXT = 7  # circular list of the port
QP_W1 = 8  # packet word 1 without the size
QP_W2 = 9  # packet word 2 without the sequence number
QP_CUR_TAG = 10  # packet word 3
QP_PORT = 11
QP_RETRIES = 12
QP_DEADLINE = 13  # ps: retransmit when no progress by then
QP_MSG_HEAD = 14  # oldest message not wholly acknowledged, -1 none
QP_MSG_CUR = 15  # message of QP_NEXT, -1 none
QP_MSG_TAIL = 16
QP_NPU = 17
QP_SIBLING = 18  # next queue pair of the same NPU, -1 none
QP_DST = 19
QP_CONNECTION = 20  # group | number << CONNECTION_SHIFT
QP_MESSAGES = 21  # posted
QP_SHARES = 22  # it is driven at SHARE_UNITS / that of its port's line rate; up to SHARE_UNITS: at line rate
QP_PENDING = 23  # 1 + the first message that waits for an answer of QP_DST, 0 none (pdes/nic/rendezvous.py)

# Congestion control of a sending queue pair (`cc`, and seen as float64 `ccf`): pdes/congestion.
CC_WORDS = 32
CC_WINDOW = 0  # packets that may be unacknowledged
CC_PSB = 1  # float64: ps per byte on the wire from the begin of one packet to that of the next; 0 = not paced
CC_LINE_PSB = 2  # float64: ps per byte of its port, or of its share of that
CC_NEXT_SEND = 3  # ps: pacing lets the next packet go then
CC_LAST_SEQ = 4  # sequence number of the newest packet that ends a message, -1 none
CC_LAST_SENT = 5  # ps: when that was sent
CC_CHILD = 6  # of the heap of those that pacing holds back (pdes/nic/pacing.py)
CC_SIBLING = 7
CC_OWN = 8  # words from here on belong to the algorithm

# What congestion control is told (pdes/congestion).
CC_START, CC_SENT, CC_ACK, CC_CNP, CC_LOSS = range(5)
LOSS_NAK, LOSS_TIMEOUT, LOSS_TRIMMED = range(3)

# What a data packet has met on its way (`telemetry`, a row for each record; `carried`, of the packet in hand).
TELEMETRY_WORDS = 16
TELEMETRY_HOPS = 0  # how many hops have written; each takes two words
TELEMETRY_FIRST = 1  # ps when the packet left the queue | class of the link << TELEMETRY_CLASS_SHIFT
TELEMETRY_SECOND = 2  # bytes that the port had sent, 34 bits | bytes left in its queue << TELEMETRY_QUEUE_SHIFT
TELEMETRY_CLASS_SHIFT = 46
TELEMETRY_QUEUE_SHIFT = 34
MAX_TELEMETRY_HOPS = 7

# A posted message (`msg`).
MSG_WORDS = 8
MSG_BYTES = 0
MSG_TAG = 1
MSG_BEGIN = 2  # sequence number of its first packet
MSG_END = 3
MSG_NEXT = 4
MSG_REF = 5  # who waits for its last byte to leave: trace row, or REF_INSTANCE | instance, -1 nobody. Of a blocking
# lane, 1 + its number << REF_LANE too
MSG_TOLD = 6  # who waits for its last acknowledgement, likewise, where that counts (pdes/npu/endpoints.py)

# The same for a message that goes whole (pdes/messages/whole.py), beside MSG_BYTES, MSG_TAG and MSG_REF.
MSG_QP = 2  # its connection
MSG_ORDINAL = 3  # how many its sender had posted before
MSG_NODE = 4  # where it is

# And for one that is asked for and not answered (nic/rendezvous.py), beside MSG_BYTES, MSG_TAG, MSG_NEXT and MSG_REF.
MSG_GROUP = 2  # as it was posted

# And for what an NPU does with a message later (pdes/npu/endpoints.py), beside what of these that needs.
MSG_DUE = 6  # ps
MSG_WHAT = 7

# A connection of such messages is a queue pair of which only what says who, whereto and which way is used, and
QP_ARRIVED = 1  # ps: when its latest message is in; congestion-aware: has left, if the connection is driven at a share

# What the lanes of an active collective have taken, where a reduction takes time (`taken`, rows as `inst_arrived`).
TAKEN_WORDS = 2
TAKEN_COUNT = 0  # messages that are in
TAKEN_PS = 1  # when the lane takes the latest of them

REF_LANE = 40
REF_INSTANCE = 1 << 61

# Selective repeat (`sel_tx`, rows as `qp`, and `sel_rx`, rows as `rxqp`): bit sets of sequence numbers, 32 bits a word.
SELECTIVE_PACKETS = 512
SEL_WORDS = 40
SEL_SEEN = 0  # 16 words: has arrived
SEL_LOST = 16  # 16 words, sender: is to be sent again
SEL_LOST_COUNT = 32
SEL_HIGHEST = 33  # sender: highest number that has arrived
SEL_CHECKED = 34  # sender: those before have been looked at for losses
SEL_HEAD = 35  # receiver: list of messages whose last packet is here, by number, -1 none

# A receiving queue pair (`rxqp`).
RXQP_WORDS = 4
RXQP_KEY = 0
RXQP_EXPECTED = 1
RXQP_NAK_SENT = 2  # 1: asked for what is missing | ps of the last congestion notification << 1
RXQP_MESSAGES = 3

# An NPU (`npu`).
NPU_WORDS = 40
NPU_READY_HEAD = 0  # list of trace rows ready to start, -1 none
NPU_KICK_HEAD = 1  # list of ports to try, -1 none
NPU_NOW = 2  # ps: time of the event in hand
NPU_HEAP_SIZE = 3
NPU_HEAP_BASE = 4
NPU_PORTS = 5
NPU_GLOBAL = 6  # NPU number in the whole fabric
NPU_LAST_RX = 7  # receiving queue pair of its last data packet; of messages that go whole: connection of the one that
# it posted last
NPU_READY_TAIL = 8
NPU_LANE = 9  # 4 words: row that a lane works on, -1 idle
NPU_WAIT_HEAD = 13  # 4 words: rows that wait for a lane
NPU_WAIT_TAIL = 17  # 4 words
NPU_LEFT = 21  # trace rows not finished
NPU_QP_HEAD = 22  # list of its queue pairs
NPU_RTO_AT = 23  # ps: its retransmission event in the heap, INF none
NPU_TRACE_BASE = 24  # first row of its trace in the tables
NPU_ROW_BASE = 25  # first row of its trace in the per-NPU arrays
NPU_SLOT_BASE = 26  # its first group slot
NPU_TRACE = 27
NPU_DONE_HEAD = 28  # selective repeat: list of complete messages that are to be told of, -1 none; of messages that go
# whole: the instance that got the last one
NPU_DONE_TAIL = 29
NPU_POSTED = 30  # messages that go whole, posted
NPU_AGENDA_HEAD = 31  # list of what instances will do later, -1 none (pdes/npu/agenda.py)
NPU_AGENDA_TAIL = 32
NPU_DONE_BYTES = 33  # selective repeat: payload of the complete message that was told of last
NPU_SLOW = 34  # compute takes so many 1024ths of its time, 0 as long as it is

LANES = 4
COMPUTE_LANE = 1

# What the system layer knows of an NPU (`system`): pdes/npu/contention.py, pdes/npu/in_flight.py.
SYSTEM_WORDS = 8
SYSTEM_RUNNING = 0  # collectives from their first step to their end, where they slow compute down
SYSTEM_WORK_PS = 1  # what was left of the compute lane's row at SYSTEM_SINCE, with no collective running: whole ps
SYSTEM_WORK_PART = 2  # and CONST_COMPUTE_SLOW-ths of a ps
SYSTEM_SINCE = 3  # ps
SYSTEM_IN_FLIGHT = 4  # places taken, where they are counted
SYSTEM_LINE = 5  # 1 + the first row that waits for a place, 0 none
SYSTEM_LATER_HEAD = 6  # 1 + the first row of its list of messages (pdes/npu/endpoints.py), 0 none
SYSTEM_LATER_TAIL = 7  # 1 + the last

SLOWDOWN_UNIT = 1000
"""CONST_COMPUTE_SLOW counts thousandths."""

# An active collective on an NPU (`inst`).
INST_WORDS = 16
INST_KEY = 0
INST_ROW = 1  # trace row
INST_SLOT = 2  # group slot, counted over all NPUs
INST_PLAN = 3
INST_LANES_LEFT = 4
INST_SENDS_LEFT = 5  # posted, last byte not yet sent
INST_STARTED = 6
INST_BYTES = 7
INST_SCHEDULE = 8
INST_MEMBER = 9
INST_PRIORITY = 10
INST_LEFT_PS = 11  # when the last byte of its messages that go whole, and that no lane waits for, has left
INST_LEFT_ORDINAL = 12  # of that message
STARTED, LAUNCHING = 1, 2
"""INST_STARTED: its steps may be done; the first is due later. 0: only messages for it have come."""

# What a lane of an active collective was asked for (`asked`, rows as `inst_arrived`): pdes/nic/rendezvous.py.
ASKED_WORDS = 3
ASKED_HEAD = 0  # 1 + the first request or message behind one that the lane has not come to, 0 none
ASKED_TAIL = 1
ASKED_CLEARED = 2  # 1: a request was answered, and its message has not come

# A lane of a plan (`lane_row`): what its chunks are and who its peers are.
LANE_WORDS = 16
LANE_PLAIN = 0  # 1: as if all the words that follow were not there: see workload.Schedules.lane_plain
LANE_VIEW = 1  # row of `view_row`, -1: the group's own order
LANE_PART = 2  # which of LANE_PARTS equal parts of the buffer
LANE_PARTS = 3
LANE_CHUNKS = 4  # into how many the part is cut
LANE_WIRE_NUM = 5  # payload bytes per LANE_WIRE_DEN bytes of data, rounded up for each message
LANE_WIRE_DEN = 6
LANE_LATENCY = 7  # ps from when a step is ready until its send is posted
LANE_GATE = 8  # dimension of which its phase needs a token, -1 none
LANE_PHASE = 9
LANE_ALIKE = 10  # lanes of the phase
LANE_BLOCKING = 11  # 1: a step ends no sooner than the last byte of what it sends has left
LANE_CONNECTION = 12  # by which of those to the peer it sends, << CONNECTION_SHIFT, and if that is driven at a share
# of the line rate, shares << SHARES_SHIFT; holds for plain lanes too
LANE_BEGINS = 13  # 1: CONST_ENDPOINT passes before its first send

# A phase of an active collective (`phase`), and what an NPU has of the tokens of a dimension (`token`): npu/tokens.py.
PHASE_WORDS = 2
PHASE_STATE = 0
PHASE_NEXT = 1  # of those that wait for the same tokens
TOKEN_WORDS = 2
TOKEN_RUNNING = 0  # tokens given out
TOKEN_HEAD = 1  # list of phases that wait, -1 none

# The members of a group in lines (`view_row`).
VIEW_WORDS = 4
VIEW_SIZE = 0  # members of a line
VIEW_PARTS = 1  # into how many a lane's part is cut once more
VIEW_FIRST = 2  # of its members in `view_member`, `view_at` and `view_part`

# Flags of a trace row on an NPU (`row_flag`).
ROW_ARRIVED = 1  # its message has come
ROW_POSTED = 2  # its receive has been posted
ROW_READY = 4  # a collective whose turn in its group, or among those in flight, has not come
ROW_STARTED = 8
ROW_DONE = 16
ROW_ASKED = 32  # its sender has asked to send
ROW_CALLED = 64  # a collective that starts without waiting for a place among those in flight

# Scalars (`ctl`).
CTL_FREE_BLOCKS = 0
CTL_FREE_MSGS = 1
CTL_FREE_INSTS = 2
CTL_QPS = 3  # in use
CTL_RXQPS = 4
CTL_FLOWS_OUT = 5  # rows of flow_out in use
CTL_FLOWS_IN = 6
CTL_RESUME_NODE = 7  # node whose batch was interrupted, -1 none
CTL_RESUME_AT = 8
CTL_BATCH = 9  # packets in the batch
CTL_LEFT = 10  # trace rows not finished, all NPUs
CTL_NEED = 11  # which pool was too small (NEED_*)
CTL_NOW = 12  # ps: start of the cell
CTL_FINISH = 13  # ps: last trace row finished
CTL_FAILED_QP = 14  # queue pair that gave up, -1 none
CTL_BATCH_FREED = 15  # blocks that the batch has emptied
CTL_WINDOW_OPEN = 16  # 1: a window was interrupted
CTL_CHECK = 17  # 1: something was taken from a pool other than the blocks since `short_of` last looked
CTL_SIDE = 18  # which of a node's inboxes is for this cell
CTL_SOONEST = 19  # ps: earliest arrival of what waits on links
CTL_PENDING = 20  # SIDES words, 1: something lies in an inbox of this side
CTL_BEGIN = 24  # ps: start of the window
CTL_PARITY = 25  # of the window's number: which of its two halves of each outbox it writes
CTL_CELL_OPEN = 26  # 1: a cell was interrupted
CTL_FAR_SOONEST = 27  # ps: earliest arrival of what waits on links to other LPs
CTL_OUT_SOONEST = 28  # ps: earliest arrival of what went to other LPs in this window
CTL_IN_NEIGHBOUR = 29  # whose packets are being taken in
CTL_IN_AT = 30  # how many of them have been
CTL_NEXT = 31  # ps: earliest event of this LP after the window
CTL_COST = 32  # packet-hops of the last window
CTL_EVENTS = 33  # to come, of messages that go whole
CTL_FAULT_PS = 38  # ps: the next change of the schedule, INF none
CTL_FAULT_AT = 39  # its row in `change`
CTL_DEPTH_PS = 40  # ps: width of the columns of `depth`
CTL_PAUSES = 41  # pauses and resumes that took effect, logged or not
CTL_WORDS = 48

NEED_BLOCKS, NEED_MSGS, NEED_QPS, NEED_RXQPS, NEED_INSTS, NEED_FLOWS = range(1, 7)

# Counters (`count`).
(
    COUNT_HOPS,
    COUNT_EVENTS,
    COUNT_WINDOWS,
    COUNT_DATA_PACKETS,
    COUNT_ACK_PACKETS,
    COUNT_CONSUMED_PACKETS,
    COUNT_DROPPED_PACKETS,
    COUNT_RETRANSMITTED,
    COUNT_BYTES_SENT,
    COUNT_BYTES_RECEIVED,
    COUNT_BYTES_DROPPED,
    COUNT_FLOWS,
    COUNT_TIMEOUTS,
    COUNT_NODES,
    COUNT_DIGEST_A,
    COUNT_DIGEST_B,
    COUNT_PAYLOAD_BYTES,
    COUNT_LOST_PACKETS,
    COUNT_MARKED,
    COUNT_PAUSES,
    COUNT_TRIMMED,
    COUNT_CNPS,
) = range(22)
COUNT_WORDS = 24

# Constants of a run (`const`).
CONST_SEED = 0
CONST_MTU = 1
CONST_HEADER = 2
CONST_ACK = 3
CONST_WINDOW = 4  # packets
CONST_QUEUE_LIMIT = 5  # bytes, 0 none
CONST_RTO = 6  # ps, 0 none
CONST_CELL = 7  # ps: no link of the fabric is shorter
CONST_ROUTE_MODE = 8  # 0 table with one home, 1 table, 2 dimensions
CONST_HOMES = 9  # home columns of an NPU
CONST_LOOKAHEAD = 10  # ps, a multiple of the cell: no link to another LP is shorter
CONST_NPUS_LOCAL = 11
CONST_NODES_LOCAL = 12
CONST_LANE_STRIDE = 13  # lanes kept per active collective
CONST_RESERVE_BLOCKS = 14
CONST_RESERVE_MSGS = 15
CONST_RESERVE_QPS = 16
CONST_SERIAL_COLLECTIVES = 17
CONST_RECORD_NODES = 18
CONST_RECORD_FLOWS = 19
CONST_MAX_RETRIES = 20
CONST_DIMENSIONS = 21
CONST_CUT_BYTES = 22  # a switch that cuts through waits for these
CONST_NEIGHBOURS = 23  # LPs to which links go
CONST_ADDRESS = 24  # where kernels find this world
CONST_CC_HOOK = 25  # address of the congestion control, 0 none
CONST_SWITCH_HOOK = 26  # address of the switch that shares its buffer, 0: output queues without sharing
CONST_TELEMETRY = 27  # address of what moves telemetry, 0: packets carry none
CONST_BASE_RTT = 28  # ps: idle round trip of a full packet over the longest path
CONST_CNP_INTERVAL = 29  # ps: a receiver sends no more than one congestion notification per queue pair in that time
CONST_BALANCE = 30  # address of the rule by which one of several equal links is chosen (pdes/balancing), 0: ECMP
CONST_PFC_BYTES = 31  # a pause frame on the wire
CONST_PFC = 32  # 1: switches pause, 0: they drop
CONST_ALPHA = 33  # of dynamic thresholds, in 1024ths
CONST_RESUME_OFFSET = 34  # bytes
CONST_ECN = 35  # 1: switches mark
CONST_TRIM = 36  # 1: switches that do not pause cut packets to their headers
CONST_WEIGHTS = 37  # packets of class 0 | of class 1 << 16 a turn, 0: class 0 first
CONST_CNP = 38  # address of what answers marks with notifications, 0: acknowledgements echo them
CONST_P2P_CLASS = 39  # data class of messages between two NPUs
CONST_CROSSING = 40  # words of a packet in an outbox
CONST_NIC = 41  # address of what says who may send at a port, 0: all that take turns may
CONST_RTT = 42  # 1: packets carry when they were sent
CONST_SELECTIVE = 44  # address of the sender's side of selective repeat, 0: go back N
CONST_SELECTIVE_RX = 46  # address of the receiver's side
CONST_PACE = 47  # address of what paces
CONST_ROUTE_HOOK = 48  # address of what routes at switches by more than one row, 0: one row and one home
CONST_PORT_HOOK = 49  # address of what chooses among the ports of an NPU, 0: NPUs have one
CONST_REORDER = 45  # packets by which one may come late before it is taken for lost
CONST_FLOWLET_GAP = 43  # ps without packets after which a flow may take another link
CONST_FAULT_HOOK = 50  # address of what makes changes of the schedule, 0 none
CONST_EPOCHS = 51  # sets of routing tables
CONST_PIT = 52  # `tx` row of a link on which all is lost, for what no route leads to; 0 none
CONST_DEPTHS = 53  # columns of `depth`, 0: queues are not sampled
CONST_POST = 54  # address of what takes a message that goes whole (pdes/messages/whole.py) or is sent later, or whose
# acknowledgement counts (pdes/npu/endpoints.py), 0 none
CONST_ACT = 55  # address of what moves messages that go whole (pdes/fidelity), 0: they go as packets
CONST_ENDPOINT = 56  # ps before the first step of a collective, and before a receiver acts on a message
CONST_REDUCES = 57  # 1: adding a message to what is there takes time
CONST_RESOLUTION = 58  # ps: transfers of messages that go whole, and reductions, are cut to multiples
CONST_TOKENS = 59  # phases that an NPU does in a dimension at a time, 0 = no limit
CONST_DIMENSIONS_GATED = 60
CONST_PHASE_STRIDE = 61
CONST_SCHEDULING = 62  # which phase that waits goes next (pdes/npu/tokens.py)
CONST_RENDEZVOUS = 70  # bytes of the smallest message that is asked for before it is sent, INF none
CONST_CONTROL_BYTES = 71  # of a request or its answer
CONST_IN_FLIGHT = 72  # collectives that an NPU does at a time, 0 = no limit
CONST_COMPUTE_SLOW = 73  # thousandths of its time that compute takes while a collective runs, 0: as long as ever
CONST_HANDSHAKES = 74  # 1: some messages are asked for, or members of collectives called
CONST_ASK = 75  # address of what asks to send, 0 none, as of the next four (pdes/build/hooks.py)
CONST_EXPECT = 76  # of what a lane does that waits for a message
CONST_MAY_START = 77  # of what holds collectives back
CONST_BY_KIND = 78  # of what takes messages of which some are requests, answers or calls
CONST_RUNNING = 79  # of what is told when a collective begins or ends
CONST_DRIVEN = 80  # address of what is told of a message to be sent next, where queue pairs are driven, 0 none
CONST_SEND_LATENCY = 81  # ps from when a message is posted until its first packet may be sent
CONST_ARRIVED = 82  # address of what takes a message that is in and acted on later, 0 none, as of the next two
CONST_LATER = 83  # of what does what was put off (pdes/npu/endpoints.py)
CONST_TOLD = 84  # of what is told of a message's last acknowledgement, where that counts
CONST_BACK = 85  # where kernels find a world of the whole fabric, by whose routes acknowledgements go (likewise)
CONST_WORDS = 88

FLOW_OUT_WORDS = 5  # src | dst << 20, tag, bytes, posted at (ps), ordinal on the queue pair
FLOW_IN_WORDS = 4  # src | dst << 20, tag, ordinal on the queue pair, finished at (ps)


class Routes(NamedTuple):
    """Routing state. A cell is a port set: links << 22 | first; with one link, `first` is that link itself.

    Links in cells and sets count from the node's first outgoing link.
    """

    node: Int64  # rows: how a node forwards
    cell: Int32  # table mode: stretches of rows; dimension mode: sets
    attach: Int32  # [npus * homes] cell from a home to the NPU
    home: Int32  # [npus * homes] column, -1 none
    link: Int32  # members of the sets that have several
    hops: Int8  # table mode, several homes: switches to the home, [rows x homes]
    hop_row: Int64  # [nodes and what `via` needs beyond] offset of the node's row in `hops`
    hop_column: Int32  # likewise: home column of a switch, -1 none
    flowlet: Int64  # [nodes x FLOWLETS x 2] when a flow's last packet came, and which link it took
    host: Int32  # [npus of the fabric] its host
    via: Int32  # [ports] table mode, NPUs of several ports: entry of `hop_row` of the switch at the other end
    here: Int32  # [nodes * D] own coordinates
    digit: Int32  # [npus of the fabric * D]
    mode: Int8  # [nodes * D]
    offset: Int64  # [nodes * D]
    size: Int64  # [D]


class Trace(NamedTuple):
    """The distinct traces, read only (docs/interfaces.md, workload.Program)."""

    kind: Int8
    lane: Int8
    duration_ps: Int64
    bytes: Int64
    peer: Int32
    tag: Int32
    seq: Int32
    group: Int32
    schedule: Int32
    priority: Int32
    child_ptr: Int64
    child: Int32
    recv_ptr: Int64
    recv_key: Int64
    recv_node: Int32
    trace_slot_ptr: Int64
    coll_ptr: Int64
    coll_node: Int32


class Plans(NamedTuple):
    """Groups and the schedules of collectives, read only (docs/interfaces.md, workload.Schedules)."""

    slot_group: Int32  # of local NPUs
    slot_member: Int32
    group_ptr: Int64
    group_member: Int32
    members: Int32
    chunks: Int32
    relative: Bool
    plan_of_ptr: Int64
    plan_of: Int32
    plan_ptr: Int32
    lane_ptr: Int32
    dep_lane: Int32
    dep_step: Int32
    send_peer: Int32
    send_lane: Int32
    send_chunk: Int32
    send_count: Int32
    recv_peer: Int32
    launch_ps: Int64  # [schedules]
    lane_row: Int64  # rows, by lane
    view_row: Int64  # rows
    view_member: Int32  # the lines of a view, one after another
    view_at: Int32  # by member: where it stands in them
    view_part: Int32  # by member


class Net(NamedTuple):
    """Nodes, sending sides of links and the packets, with the scalars that all use."""

    ctl: Int64
    count: Int64
    const: Int64
    next_time: Int64  # [NPUs] ps: earliest event of its own
    inbox: Int32  # [nodes x SIDES x 2] first record and next free one of each inbox, -1 empty
    waiting: Int64  # [links / 32] bit set: packets wait on the link for a later cell
    wait_head: Int32  # [links] record, -1 none waits; outgoing links, then those that come from other LPs
    wait_tail: Int32
    out_ptr: Int64  # [nodes + 1] outgoing links of a node
    tx: Int64  # rows of outgoing links, then of those that come from other LPs (TX_META only)
    link_class: Int64
    link_classf: Float64
    tx_dropped: Int64  # [outgoing links] packets
    record: Int64
    block_next: Int32  # [blocks]
    block_free: Int32  # [blocks] stack
    far: Int64  # [outgoing links] place among the links to the neighbour, of links to other LPs
    ghost: Int64  # [neighbours] `tx` row of the first link that comes from the neighbour
    outbox: Int64  # what goes to other LPs (pdes/network/boundary.py)
    out_at: Int64  # [neighbours x 2] where the halves of a neighbour's part of the outbox begin
    in_at: Int64  # [neighbours x 2] addresses of the halves of the neighbour's outbox that are for this LP
    gate: Int64
    pool: Int64
    backlog: Int32  # [outgoing links] for each node, its ports where something waits
    facing: Int32  # [links of the fabric] own outgoing link whose reverse it is
    depth: Int32  # [outgoing links x columns] most bytes that waited at the port in a stretch of time
    pause_log: Int64  # [pauses x 2] ps, link in the fabric << 2 | data class << 1 | 1 for a pause
    telemetry: Int64  # rows as the records, where packets carry telemetry
    carried: Int64  # one row: of the packet in hand


# What `batch_box` says of packets that go into no inbox of the LP, or not yet.
BOX_NONE = -1  # it is done with
BOX_LATER = -2  # it waits on its link, or goes to another LP


class Inbox(NamedTuple):
    """What nodes do with what arrives, and the batch of the node in hand."""

    rx_psb: Float64  # [links of the fabric] ps per byte, where a switch cuts through
    batch_key: Int64  # [batch] (time - window start) << 16 | index
    batch_tmp: Int64
    batch_pos: Int64  # [batch] record
    batch_out: Int64  # [batch] outgoing link, in the order of the keys
    batch_box: Int64  # [batch] the inbox to which the packet goes, BOX_*, likewise
    batch_freed: Int64  # [batch] blocks to give back after the batch
    bucket: Int64


class Npus(NamedTuple):
    """NPUs, their ports and their own events."""

    npu: Int64
    port: Int64
    heap: Int64  # [2 x slots of all NPUs] (ps, slot) pairs, pdes/core/heap.py
    token: Int64  # [NPUs * dimensions * TOKEN_WORDS] pdes/npu/tokens.py
    system: Int64  # [NPUs * SYSTEM_WORDS]


class Qps(NamedTuple):
    """Queue pairs, messages and flow records.

    Maps (pdes/core/hashmap.py): keys int64 (-1 free), values int64, a power of two long.
    """

    qp: Int64
    msg: Int64
    msg_free: Int64  # [messages] stack
    rxqp: Int64
    flow_out: Int64
    flow_in: Int64
    qp_key: Int64  # src << 44 | dst << 25 | connection -> qp
    qp_val: Int64
    rx_key: Int64  # dst << 44 | src << 24 | qp -> rxqp
    rx_val: Int64
    cc: Int64
    ccf: Float64
    par: Float64  # parameters of the congestion control
    sel_tx: Int64
    sel_rx: Int64
    begun: Int64  # [rows of rxqp] sequence number with which the message in hand begins, where reductions take time


class Rows(NamedTuple):
    """Trace rows of every NPU, and how far its groups are."""

    state: Int32  # [NPU rows] parents left; once ready, the next row of its list
    flag: Int8  # [NPU rows] ROW_*
    start: Int64  # [NPU rows] ps
    finish: Int64
    slot_next: Int32  # [slots] how many collectives of the group are done


class Insts(NamedTuple):
    """Active collectives."""

    inst: Int64
    inst_free: Int64  # [instances] stack
    inst_pc: Int64  # [instances * lane stride] 2 x step + 1 once its send is posted
    inst_arrived: Int64  # [instances * lane stride]
    inst_left: Int64  # [instances * lane stride] sends of a blocking lane that have left and it has not seen
    inst_due: Int64  # [instances * (lane stride + 1)] pdes/npu/agenda.py
    inst_later: Int64  # [instances * (lane stride + 1)]
    phase: Int64  # [instances * phase stride * PHASE_WORDS] pdes/npu/tokens.py
    called: Int32  # [instances * lane stride] 1 + the peer that a lane has called, where collectives wait for places
    asked: Int64  # [instances * lane stride * ASKED_WORDS] where messages are asked for
    taken: Int64  # [instances * lane stride * TAKEN_WORDS] where a reduction takes time
    inst_key: Int64  # npu << 40 | group << 20 | seq -> inst
    inst_val: Int64


class Messages(NamedTuple):
    """Messages that go whole (pdes/fidelity), and reductions (pdes/npu/reduction.py)."""

    event: Int64  # rows, pdes/messages/events.py
    queue: Int64  # what lists they are in
    rush: Int64  # [events] heap of those of the moment in hand that are in none
    receive_ptr: Int64  # [lanes of all plans + 1] receives of a lane in `reduces`
    reduces: Int8  # 1: what is received is added to what is there
    memory_psb: Float64  # [1] ps per byte of an NPU's memory


# A change of the schedule (`change`), pdes/network/faults.py.
CHANGE_WORDS = 4
CHANGE_PS = 0  # begin of a cell
CHANGE_KIND = 1
CHANGE_INDEX = 2  # own outgoing link; own NPU
CHANGE_VALUE = 3  # its class; its NPU_SLOW; which routing tables
CHANGE_LINK, CHANGE_NPU, CHANGE_ROUTES = range(3)


class Schedule(NamedTuple):
    """What changes during the run, read only."""

    change: Int64  # rows, in the order in which they are made
    table64: Int64  # Routes' arrays of that type, one after another, each for all sets of routing tables
    table32: Int32
    table8: Int8


class World(NamedTuple):
    """All state of one logical process. Functions take the parts that they touch."""

    net: Net
    inbox: Inbox
    npus: Npus
    qps: Qps
    rows: Rows
    insts: Insts
    routes: Routes
    trace: Trace
    plans: Plans
    schedule: Schedule
    messages: Messages
