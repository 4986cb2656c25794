"""What PyTorch records of a training run, host execution traces and Kineto traces, and Chakra traces made of it."""

from et.pytorch.conversion import convert
from et.pytorch.injected.nadi_collecting import collect

__all__ = ["collect", "convert"]
