"""What the arrays of a world are by, and which words of their rows hold numbers of one LP; a test demands entries.

Every array that a checkpoint holds has an entry in ARRAYS. Every word whose kind is a number of an LP (LOCAL), or packs
several fields, has one in WORDS: how another division of the fabric takes it (tests/parallel/test_cuts.py).
"""

from nadi.pdes.core.rows.row import WordKind

_ARRAYS = {
    "sums and times of the LP": "net.ctl net.count net.jobs.total net.pause_log",
    "node": "net.next_time net.counts net.pool routes.flowlet",
    "outgoing link": "net.tx net.tx_dropped net.port_ties net.gate net.backlog net.depth net.marks net.sample "
    "net.jobs.link_bytes",
    "packet under way or in a queue": "net.record net.telemetry net.inbox net.wait_head net.wait_tail",
    "NPU": "npus.npu npus.heap npus.token npus.system npus.turns",
    "port of an NPU": "npus.port",
    "trace row of an NPU": "rows.state rows.flag rows.start rows.finish",
    "group slot of an NPU": "rows.slot_next islands.start_ps islands.start_row islands.start_order islands.end_ps "
    "islands.packet_row",
    "sending queue pair": "qps.qp qps.cc qps.resends qps.sel_tx qps.qp_key qps.qp_val",
    "receiving queue pair": "qps.rxqp qps.sel_rx qps.begun",
    "message": "qps.msg",
    "active collective": "insts.inst insts.lane insts.phase insts.called insts.asked insts.taken insts.inst_key "
    "insts.inst_val",
    "NVLink domain": "islands.island islands.member islands.started",
    "pool, which is made again": "net.block_next net.block_free net.waiting qps.msg_free insts.inst_free",
    "empty at a cut": "net.ordered net.held_block net.carried net.sample_log npus.busy qps.flow_out qps.flow_in "
    "islands.due",
    "of models with one LP": "net.link_class npus.memory qps.arrived messages.event messages.queue "
    "messages.rush flows.state flows.flow flows.hop flows.hop_use flows.hop_total flows.link flows.link_flow "
    "flows.link_flow_hop flows.finish_heap flows.finish_place flows.dirty flows.fresh flows.reached_flow "
    "flows.fill_heap flows.fill_place flows.front flows.node_share flows.coupled flows.stage flows.lane "
    "flows.is_coupled flows.coupled_ptr flows.link_total flows.touched flows.by_flow flows.turn flows.turn_heap "
    "flows.turn_place",
}
ARRAYS = {name: what for what, names in _ARRAYS.items() for name in names.split()}
ALONE, EMPTY = "of models with one LP", "empty at a cut"

LOCAL = frozenset(
    {
        WordKind.PLACE,
        WordKind.LINK,
        WordKind.NODE,
        WordKind.LIST,
        WordKind.QUEUE_PAIR,
        WordKind.RECEIVER,
        WordKind.RECORD,
        WordKind.MESSAGE,
        WordKind.INSTANCE,
        WordKind.PHASE,
        WordKind.PACKED,
    }
)
# row -> how: its words. "same" words hold numbers of the whole fabric, of the NPU's trace, or none
WORDS = {
    "Scalars": {"made again": "resume_node failed_queue_pair in_list fault_at"},
    "OutgoingLink": {"translated": "meta", "same": "sent_bytes sent_packets"},
    "PacketRecord": {"translated": "w2", "same": "w1 w3"},
    "Gate": {"translated": "queues", "same": "discipline"},
    "Telemetry": {"same": "met"},
    "JobTotal": {"summed": "digest_a digest_b messages_a messages_b"},
    "Npu": {
        "translated": "kick_head agenda_head agenda_tail first_queue_pair done_head done_tail",
        "made again": "heap last_receiver last_instance last_connection trace_base row_base slot_base place",
    },
    "Port": {
        "translated": "sent_ref ring paced kick_next",
        "made again": "control_head control_tail transit_head transit_tail",
    },
    "Tokens": {"translated": "waiting"},
    "System": {"translated": "later_head later_tail"},
    "QueuePair": {
        "translated": "ring_next port pending w2 head_message current_message tail_message sibling npu",
        "same": "w1 current_tag",
    },
    "Message": {"translated": "next_message ref told", "same": "tag"},
    "PendingRequest": {"translated": "next_message ref", "same": "tag"},
    "LaterMessage": {"translated": "connection later ref", "same": "tag w1 due"},
    "KeptMessage": {"translated": "next_message w2", "same": "w1 tag"},
    "QueuedRequest": {"translated": "next_message"},
    "Receiver": {"translated": "key port_back", "same": "nak_sent"},
    "CongestionState": {"translated": "child sibling"},
    "Selective": {"translated": "head_message"},
    "Instance": {"translated": "key", "made again": "slot first_lane list_first"},
    "LaneState": {"translated": "later", "made again": "first", "same": "due"},
    "CollectivePhase": {"translated": "next_phase"},
    "LaneRequest": {"translated": "first last"},
    "IslandMember": {"made again": "link_out link_in"},
}
