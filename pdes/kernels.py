"""How compiled kernels are written: decorators, rows of state, memory, hashes and the heap.

`Array`, `Program` and `Rows` name inputs and rows in annotations. `Float64`, `Int32` and `Int64` declare arrays among
the fields of a kernel's state; `inputs.arrays` names the arrays of plain Python.
"""

from nadi.pdes.core.hashing import mix, mix2, mix3
from nadi.pdes.core.inputs import Array, Program, Rows
from nadi.pdes.core.jit import (
    Directory,
    compile_for,
    copy_row,
    inline,
    kernel,
    load_unaligned,
    outline,
    reader,
    store_unaligned,
)
from nadi.pdes.core.memory import aligned, full, row_of, rows_of, zeros
from nadi.pdes.core.queues import heap_pop, heap_push
from nadi.pdes.core.rows.row import Row, WordKind, word
from nadi.pdes.core.state import Float64, Int32, Int64
