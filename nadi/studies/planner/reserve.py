"""The memory reserve: GPU memory that plans leave free for what no estimate counts, such as fragmentation."""

import math
import re
from fractions import Fraction
from typing import NamedTuple

from nadi.errors import ConfigError
from nadi.inputs.errors import InputError
from nadi.inputs.limits import MAX_BYTES
from nadi.inputs.units import format_bytes, parse_bytes_within, short

_SHARE = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%\s*")


class MemoryReserve(NamedTuple):
    """A reserve as a size or as a share of GPU memory; the other field is zero."""

    size_bytes: int = 0  # reserve of each GPU in bytes
    share: Fraction = Fraction(0)  # reserve as a share of each GPU's memory, 0 to 1

    @classmethod
    def parse(cls, text: str) -> "MemoryReserve":
        """Parse "4GiB" or "5%". Raises ConfigError if the text is neither a size nor a share below 100 %."""
        match = _SHARE.fullmatch(text)
        if match and (share := Fraction(match[1]) / 100) < 1:
            return cls(share=share)
        try:
            return cls(size_bytes=parse_bytes_within(text, MAX_BYTES))
        except InputError as error:
            raise ConfigError(
                f"--reserve: found {short(text)}; expected a size as 4GiB, or a share of a GPU's memory, as 5%"
            ) from error

    def bytes_of(self, memory_bytes: int, gpu: str) -> int:
        """Return the bytes reserved of a GPU's memory, rounded up; raise ConfigError if they leave none.

        Args:
            memory_bytes: The memory of the GPU in bytes.
            gpu: The name of the GPU, for errors.
        """
        reserve_bytes = self.size_bytes + math.ceil(self.share * memory_bytes)
        if reserve_bytes >= memory_bytes:
            raise ConfigError(
                f"--reserve: found {format_bytes(reserve_bytes)}; expected less than the {format_bytes(memory_bytes)} "
                f"that a GPU has ({gpu})"
            )
        return reserve_bytes


DEFAULT_RESERVE = MemoryReserve(share=Fraction(5, 100))
"""Default reserve, in addition to CUDA's context and NCCL's buffers, which `workload.generators.memory` counts.

CUDA offers 79.1 to 79.2 GiB of the 80 GiB of an H100, 1 % less (NVIDIA-NeMo/RL#2814). PyTorch's allocator lost 1.83 GiB
to fragmentation beside 75.3 GiB of a model that filled the memory, 2.4 %; that project then reserved 5 %
(vllm-project/compressed-tensors#587). The rest is for copies in the optimizer's step, which no estimate counts."""
