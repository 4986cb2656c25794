"""Start, workers, progress and end of a run: launchers, ranks, workers, signals."""
