"""Packets: the model of the engine itself (pdes/window.py), to which all others are compared."""

from nadi.pdes.fidelity import PATH_KEYS, NetworkModel, keys_with

NETWORK = NetworkModel(
    name="packet",
    title="becomes packets with headers and acknowledgements, which wait in queues of ports, and senders for windows",
    use="incast, PFC, ECN, load balancing, losses, faults, tails; and the last word on a step",
    keys=PATH_KEYS
    | keys_with(
        "acknowledged queue_limit rto max_retries max_resends detection_time nvlink switch buffer pfc pfc_alpha "
        "pfc_headroom pfc_resume_offset ecn ecn_kmin ecn_kmax ecn_pmax ecn_by_rate ecn_by_class ecn_last_hop "
        "trimming trim_threshold trim_last_hop trim_share trimmed_size pfc_classes pfc_rising_classes "
        "class_weights discipline p2p_class classes virtual_lanes lane_buffer credit_unit credit_return "
        "credit_frame lane_weights high_lanes high_limit congestion_control congestion cnp_interval cnp_delay "
        "receiver_credits credit_window oversubscription load_balancing routing source_routes routing_delay "
        "flowlet_gap grade_thresholds entropy paths denied_paths nic_ports selective_repeat reorder delivery "
        "ack_every sleek flows"
    ),
    has_packets=True,
    several_workers=True,
    refused_faults={},
)
