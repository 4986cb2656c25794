"""Builders of topologies, one file each, found by `inputs.plug_ins`.

A file declares a class `Arguments` (a `Parameters`), `build(arguments, name) -> Graph` and, if the parameters
determine the size, `extent(arguments, name) -> Extent`; `nadi topology list` prints the first line of its docstring.
"""
