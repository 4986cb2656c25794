"""Transformation of traces: merging into a master trace and splitting it, slicing, and reduction to what matters.

All of them work on the bytes of nodes, so that what no column of a TraceTable takes stays unchanged.
"""

from nadi.et.communications import LANES, NO_LANE, Key, lanes_of
from nadi.et.files import TraceFile, companions, find_files
from nadi.et.reshape.merging import merge, read_index, split
from nadi.et.reshape.parts import ReduceResult, Selection, SliceResult, reduce_trace, slice_traces
