"""What PyTorch records of a training run, host execution traces and Kineto traces, and Chakra traces made of it."""

from et.pytorch.conversion import convert

__all__ = ["convert"]
