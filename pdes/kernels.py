"""How compiled kernels are written: decorators, rows of state, memory, hashes and the heap.

`Array`, `Program` and `Rows` name inputs and rows in annotations. `Float64`, `Int32` and `Int64` declare arrays among
the fields of a kernel's state; `inputs.arrays` names the arrays of plain Python.
"""

from nadi.pdes.core import Array, Program, Rows
from nadi.pdes.core.algorithms import heap_pop, heap_push, mix, mix2, mix3
from nadi.pdes.core.jit import (
    Directory,
    aligned,
    compile_for,
    copy_row,
    full,
    inline,
    kernel,
    load_unaligned,
    outline,
    reader,
    row_of,
    rows_of,
    store_unaligned,
    zeros,
)
from nadi.pdes.core.rows import Row, WordKind, word
from nadi.pdes.core.state import Float64, Int32, Int64
