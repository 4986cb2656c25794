"""Batches of a replica's iterations, with the shapes that determine their operators."""

from typing import NamedTuple

from workload.generators.inference.requests import Request


class Prompts(NamedTuple):
    """Pieces of prompts with the same shape."""

    sequences: int  # Number of pieces, each of a different sequence
    tokens: int  # Number of tokens per piece in this iteration
    context: int  # Number of earlier tokens per sequence in the KV cache


class Batch(NamedTuple):
    """The batch of an iteration."""

    prompts: tuple[Prompts, ...] = ()  # Pieces of prompts by shape
    decodes: int = 0  # Number of sequences that decode one token
    keys: int = 0  # Mean number of keys per decoding sequence, including the new one, rounded up
    sampled: int = 0  # Number of sequences that get a token

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
    """One pass of a replica through the model."""

    number: int  # Number of the iteration, from 0
    lane: int  # Number of its batch in flight; each batch in flight has its own sequences
    batch: Batch  # Shapes of the pass
    name: str  # Name of the pass; a replica without tokens uses the name of the other replicas' pass
    joined: tuple[Request, ...] = ()  # Requests that start in the iteration
    prompted: tuple[Request, ...] = ()  # Requests whose prompt ends in the iteration
    marks: tuple[tuple[int, int], ...] = ()  # Request number and number of tokens so far, for first and last tokens
