"""One file per topology, found by `topologies.registry`.

A file declares NAME, a class `Arguments` (a `Parameters`) and `build(arguments, name) -> Graph`; the first line of its
docstring stands in `nadi topology list`.
"""
