"""New traces like those of trace sets.

`learn` learns from sets whose nodes have durations, `generate` makes a new set.
docs/explanation/synthetic-traces.md says how it works and what it cannot do.
"""

from et.synthesis.generating import Generated, Learned, SynthesisError, generate, learn
from et.synthesis.request import SynthesisRequest, request_of
from et.synthesis.streams import stream_of

__all__ = [
    "Generated",
    "Learned",
    "SynthesisError",
    "SynthesisRequest",
    "generate",
    "learn",
    "request_of",
    "stream_of",
]
