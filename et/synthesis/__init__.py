"""Generation of new traces like those of given trace sets.

`learn` learns from sets whose nodes have durations, `generate` makes a new set. docs/explanation/synthetic-traces.md
describes the method and its limits.
"""

from nadi.et.synthesis.generating import Generated, Learned, Originals, SynthesisError, generate, learn
from nadi.et.synthesis.streams import stream_of
from nadi.et.synthesis.templates import MICROS, SynthesisRequest, request_of
