"""From a configuration to the results of a run: engine inputs, fidelities, closed forms and their uses in runs."""
