"""From a graph, a program and settings to the worlds of the logical processes."""
