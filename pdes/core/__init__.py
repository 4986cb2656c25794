"""Foundations of the other rooms: compiled kernels, rows of state, hashes, heaps, queues of records, packets."""
