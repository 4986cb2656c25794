"""Build the worlds of the logical processes from a graph, a program and settings."""
