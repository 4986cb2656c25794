"""Builders of topologies, one file each, found by `topologies.registry`.

A file declares NAME, a class `Arguments` (a `Parameters`), `build(arguments, name) -> Graph` and, if the parameters
determine the size, `extent(arguments, name) -> Extent`; `nadi topology list` prints the first line of its docstring.
"""
