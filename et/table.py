"""TraceTable: one trace file as arrays."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from et.names import ComposedNames, NameTable

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class TraceTable:
    """One trace file: n nodes in file order, all arrays read-only.

    Attributes:
        path: Path of the file, or another source, for messages.
        version: GlobalMetadata.version, or the attribute "schema", which traces of PyTorch have instead; or "".
        node_id: uint64[n], distinct ids of the nodes.
        names: Names of the nodes.
        type: int8[n], NodeType, never INVALID_NODE.
        is_cpu_op: bool[n], absent = False.
        start_time_micros: int64[n], start time in microseconds.
        duration_micros: int64[n], duration in microseconds.
        num_ops: int64[n], floating-point operations, absent = -1.
        tensor_size: int64[n], bytes, absent = -1.
        tensor_loc: int8[n], absent = 0.
        comm_type: int8[n], CollectiveCommType of COMM_COLL nodes, -1 on others and where absent (host collectives).
        comm_size: int64[n], bytes, absent = -1.
        comm_src: int32[n], NPU, absent = -1.
        comm_dst: int32[n], NPU, absent = -1.
        comm_tag: int32[n], absent = -1.
        comm_priority: int32[n], absent = 0.
        group: int32[n], row of group_names.
        group_names: Names of communicators; group_names[0] is "" (all NPUs; "0" reads as "").
        involved_dim: int32[n], bit d set = dimension d takes part, absent = -1.
        in_split_size: int32[n], row of split_sizes: parts of an all-to-all's comm_size for each receiver.
        out_split_size: int32[n], row of split_sizes: parts from each sender, in the same unit.
        split_sizes: Distinct lists of one number per member; split_sizes[0] is (), even or absent.
        operators: int32[n], row of operator_lists: operators that a compute node runs in sequence.
        operator_lists: Distinct texts, such as "gemm 2048x4608x12288 bf16; norm 2048x12288 bf16"; the first is "".
        dep_ptr: int64[n+1], parents of row i are dep[dep_ptr[i]:dep_ptr[i+1]].
        dep: int32[], rows of parents, data and control combined, sorted, without repeats.
        dangling: Number of dependencies on nodes that the file lacks, dropped by read_trace(strict=False).
        dropped_control: Number of control dependencies dropped by read_trace(strict=False), all or none of them.
        dangling_control: Number of dropped control dependencies on nodes that the file lacks.
        control_cycle: Cycle that the dropped control dependencies close, as ids, `3 -> 5 -> 3`; otherwise "".
        metadata_groups: NPUs of the communicators that METADATA nodes define, by name; () = all NPUs.
        other: int32[n] or None, row of other_attributes: attributes that no column takes, if they are kept.
        other_attributes: Distinct lists of AttributeProto, each as its bytes; other_attributes[0] is ().
    """

    path: str
    version: str
    node_id: NDArray[np.uint64]
    names: NameTable | ComposedNames
    type: Int8
    is_cpu_op: NDArray[np.bool_]
    start_time_micros: Int64
    duration_micros: Int64
    num_ops: Int64
    tensor_size: Int64
    tensor_loc: Int8
    comm_type: Int8
    comm_size: Int64
    comm_src: Int32
    comm_dst: Int32
    comm_tag: Int32
    comm_priority: Int32
    group: Int32
    group_names: tuple[str, ...]
    involved_dim: Int32
    in_split_size: Int32
    out_split_size: Int32
    split_sizes: tuple[tuple[int, ...], ...]
    operators: Int32
    operator_lists: tuple[str, ...]
    dep_ptr: Int64
    dep: Int32
    dangling: int = 0
    dropped_control: int = 0
    dangling_control: int = 0
    control_cycle: str = ""
    metadata_groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    other: Int32 | None = None
    other_attributes: Sequence[tuple[bytes, ...]] = ((),)

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def __len__(self) -> int:
        return len(self.node_id)
