"""From a configuration to the results of a run: the engine's inputs, the fidelities, closed forms."""
