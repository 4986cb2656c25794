"""New traces like those of trace sets.

`learn` makes a model of sets whose nodes have durations, `generate` a new set of the model; `distances` says how far it
is from traces that were held out. docs/explanation/synthetic-traces.md says how it works and what it cannot do.
"""

from et.synthesis.conditions import Wanted, wanted_of
from et.synthesis.distances import distances
from et.synthesis.generating import Generated, Learned, SynthesisError, bits_per_event, generate, learn
from et.synthesis.streams import stream_of

__all__ = [
    "Generated",
    "Learned",
    "SynthesisError",
    "Wanted",
    "bits_per_event",
    "distances",
    "generate",
    "learn",
    "stream_of",
    "wanted_of",
]
