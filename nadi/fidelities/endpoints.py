"""What passes at the ends of messages, with every model of the network."""

from typing import Any

from nadi.config import NetworkSection

_BYTE_PS = 8e12


def of_endpoints(network: NetworkSection) -> dict[str, Any]:
    """Parameters of pdes.messages.fidelity.Fidelity that all models have."""
    rate_bps = network.reduction_bandwidth
    psb = 0.0 if rate_bps is None else _BYTE_PS / rate_bps
    return {"endpoint_delay_ps": network.endpoint_delay, "reduction_psb": psb}
