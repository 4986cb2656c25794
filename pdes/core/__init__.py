"""What the other rooms build on: compiled kernels, rows of state, hashes, heaps, queues of records, packets."""
