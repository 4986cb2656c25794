"""Traces of serving a model: prefill and decoding in continuous batches, on one or two sets of GPUs.

`workload.generators.inference.requests` defines the requests, `scheduler` the batch of each iteration, `layers` and
`experts` its operators and communication; `npu_trace` and `generator` generate the traces.
"""

from nadi.workload.generators.inference.deployment import Serving
from nadi.workload.generators.inference.generator import generate
from nadi.workload.generators.inference.requests import Lengths, Request, RequestStream, requests_of
