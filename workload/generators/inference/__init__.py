"""Traces of serving a model: prompts and decoding in continuous batches, on one set of GPUs or on two.

`workload.generators.inference.requests` says what is asked, `scheduler` what each iteration does, `layers` and
`experts` which
operators and communication that takes, `npu_trace` and `generator` make traces of it.
"""

from workload.generators.inference.deployment import Serving
from workload.generators.inference.generator import generate
from workload.generators.inference.requests import Lengths, Request, RequestStream, requests_of

__all__ = ["Lengths", "Request", "RequestStream", "Serving", "generate", "requests_of"]
