"""What must hold in traces before a run, so that the engine never waits for what cannot come."""
