"""What a replica does in one iteration, as far as its operators depend on it."""

from typing import NamedTuple

from workload.generators.inference.requests import Request


class Prompts(NamedTuple):
    """Pieces of prompts that are alike.

    Attributes:
        sequences: how many.
        tokens: of each in this iteration.
        context: tokens of each that the cache holds from before.
    """

    sequences: int
    tokens: int
    context: int


class Batch(NamedTuple):
    """Shapes of an iteration.

    Attributes:
        prompts: pieces of prompts.
        decodes: sequences of which one token is worked out.
        keys: that each of these sees, the new one too: their mean, rounded up.
        sampled: sequences that get a token.
    """

    prompts: tuple[Prompts, ...] = ()
    decodes: int = 0
    keys: int = 0
    sampled: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of prompts."""
        return sum(piece.sequences * piece.tokens for piece in self.prompts)

    @property
    def tokens(self) -> int:
        """That go through the matrices."""
        return self.prompt_tokens + self.decodes

    @property
    def name(self) -> str:
        """Of its pass."""
        if self.prompts:
            return "mixed" if self.decodes else "prefill"
        return "decode"


class Iteration(NamedTuple):
    """One pass of a replica through the model.

    Attributes:
        number: from 0.
        lane: which of the batches in flight it is one of; each has sequences of its own.
        batch: what is done.
        name: of its pass; of a replica with nothing to do that of the others.
        joined: requests that begin with it.
        prompted: requests whose prompt it ends.
        marks: request and how many tokens it has with this one, of first and last tokens.
    """

    number: int
    lane: int
    batch: Batch
    name: str
    joined: tuple[Request, ...] = ()
    prompted: tuple[Request, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()
