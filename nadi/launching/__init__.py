"""How a run starts, among whom it is shared, how far it is and how it ends: launchers, ranks, workers, signals."""
