"""TraceTable, one trace file as arrays, and TraceTables, those of several NPUs with their groups."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nadi.et.names import ComposedNames, NameTable
from nadi.inputs.arrays import Int8, Int32, Int64, Mask, UInt64


@dataclasses.dataclass(frozen=True, eq=False)
class TraceTable:
    """One trace file: n nodes in file order, all arrays read-only."""

    path: str  # path of the file, or another source, for messages
    version: str  # GlobalMetadata.version, or the attribute "schema", which traces of PyTorch have instead; or ""
    node_id: UInt64  # uint64[n], distinct ids of the nodes
    names: NameTable | ComposedNames  # names of the nodes
    type: Int8  # int8[n], NodeType, never INVALID_NODE
    is_cpu_op: Mask  # bool[n], absent = False
    start_time_micros: Int64  # int64[n], start time in microseconds
    duration_micros: Int64  # int64[n], duration in microseconds
    num_ops: Int64  # int64[n], floating-point operations, absent = -1
    tensor_size: Int64  # int64[n], bytes, absent = -1
    tensor_loc: Int8  # int8[n], absent = 0
    comm_type: Int8  # int8[n], CollectiveCommType of COMM_COLL nodes, -1 on others and where absent (host collectives)
    comm_size: Int64  # int64[n], bytes, absent = -1
    comm_src: Int32  # int32[n], NPU, absent = -1
    comm_dst: Int32  # int32[n], NPU, absent = -1
    comm_tag: Int32  # int32[n], absent = -1
    comm_priority: Int32  # int32[n], absent = 0
    group: Int32  # int32[n], row of group_names
    group_names: tuple[str, ...]  # names of communicators; group_names[0] is "" (all NPUs; "0" reads as "")
    involved_dim: Int32  # int32[n], bit d set = dimension d takes part, absent = -1
    in_split_size: Int32  # int32[n], row of split_sizes: parts of an all-to-all's comm_size for each receiver
    out_split_size: Int32  # int32[n], row of split_sizes: parts from each sender, in the same unit
    split_sizes: tuple[tuple[int, ...], ...]  # distinct lists of one number per member; the first is (), even or absent
    operators: Int32  # int32[n], row of operator_lists: operators that a compute node runs in sequence
    # distinct texts, such as "gemm 2048x4608x12288 bf16; norm 2048x12288 bf16"; the first is ""
    operator_lists: tuple[str, ...]
    dep_ptr: Int64  # int64[n+1], parents of row i are dep[dep_ptr[i]:dep_ptr[i+1]]
    dep: Int32  # int32[], rows of parents, data and control combined, sorted, without repeats
    dangling: int = 0  # number of dependencies on nodes that the file lacks, dropped by read_trace(strict=False)
    dropped_control: int = 0  # number of control dependencies dropped by read_trace(strict=False), all or none of them
    dangling_control: int = 0  # number of dropped control dependencies on nodes that the file lacks
    control_cycle: str = ""  # cycle that the dropped control dependencies close, as ids, `3 -> 5 -> 3`; otherwise ""
    # NPUs of the communicators that METADATA nodes define, by name; () = all NPUs
    metadata_groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    # int32[n] or None, row of other_attributes: attributes that no column takes, if they are kept
    other: Int32 | None = None
    other_attributes: Sequence[tuple[bytes, ...]] = ((),)  # distinct lists of AttributeProto, as bytes; the first is ()

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def __len__(self) -> int:
        return len(self.node_id)


@dataclasses.dataclass(frozen=True, eq=False)
class TraceTables:
    """Traces of some NPUs."""

    # trace of each NPU. A mapping may read or make a trace at each access, so access each once
    tables: Mapping[int, TraceTable]
    # members of communicators by the names that the traces use, the content of a group file
    groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()  # sentences on what was assumed and what was lost
    report: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # assumptions and losses, for JSON
    nodes_each: int = 0  # number of nodes in every trace, where all traces have the same number; 0 = unknown


class LazyTraces(Mapping[int, TraceTable]):
    """Traces by NPU; each access reads or makes the trace, and nothing is kept."""

    def __init__(self, npus: Collection[int], make: Callable[[int], TraceTable]) -> None:
        self._npus, self._make = npus, make

    def __getitem__(self, npu: int) -> TraceTable:
        if npu not in self._npus:
            raise KeyError(npu)
        return self._make(npu)

    def __iter__(self) -> Iterator[int]:
        return iter(self._npus)

    def __len__(self) -> int:
        return len(self._npus)
