"""The reserve: memory of each GPU that plans leave free, for what no estimate counts, as fragmentation."""

import math
import re
from fractions import Fraction
from typing import NamedTuple

from nadi.errors import ConfigError
from topologies.bounds import MAX_BYTES
from topologies.errors import TopologyError
from topologies.units import format_bytes, parse_bytes_within, short

_SHARE = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%\s*")


class MemoryReserve(NamedTuple):
    """A size, or a share of what a GPU has; one of both is zero.

    Attributes:
        size_bytes: of each GPU.
        share: of each GPU's memory, below 1.
    """

    size_bytes: int = 0
    share: Fraction = Fraction(0)

    @classmethod
    def parse(cls, text: str) -> "MemoryReserve":
        """Of "4GiB" or "5%".

        Raises:
            ConfigError: anything else.
        """
        match = _SHARE.fullmatch(text)
        if match and (share := Fraction(match[1]) / 100) < 1:
            return cls(share=share)
        try:
            return cls(size_bytes=parse_bytes_within(text, MAX_BYTES))
        except TopologyError as error:
            raise ConfigError(
                f"--reserve: found {short(text)}; expected a size as 4GiB, or a share of a GPU's memory, as 5%"
            ) from error

    def bytes_of(self, memory_bytes: int, gpu: str) -> int:
        """Bytes of a GPU of so much memory, rounded up.

        Raises:
            ConfigError: nothing is left.
        """
        reserve_bytes = self.size_bytes + math.ceil(self.share * memory_bytes)
        if reserve_bytes >= memory_bytes:
            raise ConfigError(
                f"--reserve: found {format_bytes(reserve_bytes)}; expected less than the {format_bytes(memory_bytes)} "
                f"that a GPU has ({gpu})"
            )
        return reserve_bytes


DEFAULT_RESERVE = MemoryReserve(share=Fraction(5, 100))
"""What plans leave free unless the user says otherwise, on top of CUDA's context and NCCL's buffers, which
`workload.generators.memory` counts. Of the 80 GiB of an H100, CUDA has 79.1 to 79.2 (NVIDIA-NeMo/RL#2814), 1 %.
PyTorch's
allocator had 1.83 GiB in fragments beside 75.3 of a model that took all memory, 2.4 %; that project then reserved 5 %
(vllm-project/compressed-tensors#587). The rest is for copies in the optimizer's step, which nothing counts."""
