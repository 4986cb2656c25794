"""One file per topology, found by `topologies.registry`.

A file declares NAME, a class `Arguments` (a `Parameters`), `build(arguments, name) -> Graph` and, where parameters tell
it, `extent(arguments, name) -> Extent`, how large that will be; the first line of its docstring stands in
`nadi topology list`.
"""
