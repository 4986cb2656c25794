"""Workers that process the windows: threads, processes, MPI ranks, and their communication."""
