"""Conversion of PyTorch's records of a training run, host execution traces and Kineto traces, to Chakra traces."""

from et.pytorch.conversion import convert
from et.pytorch.injected.nadi_collecting import collect
