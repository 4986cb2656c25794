"""Batches of a replica's iterations, with the shapes that determine their operators."""

from typing import NamedTuple

from workload.generators.inference.requests import Request


class Prompts(NamedTuple):
    """Pieces of prompts with the same shape.

    Attributes:
        sequences: Number of pieces, each of a different sequence.
        tokens: Number of tokens per piece in this iteration.
        context: Number of earlier tokens per sequence in the KV cache.
    """

    sequences: int
    tokens: int
    context: int


class Batch(NamedTuple):
    """The batch of an iteration.

    Attributes:
        prompts: Pieces of prompts by shape.
        decodes: Number of sequences that decode one token.
        keys: Mean number of keys per decoding sequence, including the new one, rounded up.
        sampled: Number of sequences that get a token.
    """

    prompts: tuple[Prompts, ...] = ()
    decodes: int = 0
    keys: int = 0
    sampled: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens."""
        return sum(piece.sequences * piece.tokens for piece in self.prompts)

    @property
    def tokens(self) -> int:
        """Number of tokens that pass through the matrices."""
        return self.prompt_tokens + self.decodes

    @property
    def name(self) -> str:
        """Name of the pass: prefill, decode or mixed."""
        if self.prompts:
            return "mixed" if self.decodes else "prefill"
        return "decode"


class Iteration(NamedTuple):
    """One pass of a replica through the model.

    Attributes:
        number: Number of the iteration, from 0.
        lane: Number of its batch in flight; each batch in flight has its own sequences.
        batch: Shapes of the pass.
        name: Name of the pass; a replica without tokens uses the name of the other replicas' pass.
        joined: Requests that start in the iteration.
        prompted: Requests whose prompt ends in the iteration.
        marks: Request number and number of tokens so far, for first and last tokens.
    """

    number: int
    lane: int
    batch: Batch
    name: str
    joined: tuple[Request, ...] = ()
    prompted: tuple[Request, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()
