"""Who does the windows: threads, processes, MPI ranks, and what they tell each other."""
