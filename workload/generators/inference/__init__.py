"""Traces of serving a model: prefill and decoding in continuous batches, on one or two sets of GPUs.

`workload.generators.inference.requests` defines the requests, `scheduler` the batch of each iteration, `ops` its
operators and communication, `software` the work of the host; `generator` generates the traces.
"""

from nadi.workload.generators.inference.deployment import Link, Network, Serving, engines, settle
from nadi.workload.generators.inference.generator import generate, nodes_at_least, nodes_at_most, traces_of
from nadi.workload.generators.inference.requests import (
    Lengths,
    Request,
    RequestStream,
    names_requests,
    requests_in,
    requests_of,
)
from nadi.workload.generators.inference.software import serving_software, software_names
