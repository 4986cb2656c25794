"""Conversion of PyTorch's records of a training run, host execution traces and Kineto traces, to Chakra traces."""

from nadi.et.pytorch.conversion import convert
from nadi.et.pytorch.injected.nadi_collecting import collect
