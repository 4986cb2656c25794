"""Builders of topologies, one file each, found by `inputs.plug_ins`.

A file declares a class `Arguments` (a `Parameters`), `build(arguments, name) -> Graph` and, if the parameters
determine the size, `extent(arguments, name) -> Extent`; `nadi topology list` prints the first line of its docstring.

A topology that reads files declares `FILES`, their endings (".topo") or kinds (`inputs.kinds`), and a parameter `path`:
users may then name the file alone.
"""
