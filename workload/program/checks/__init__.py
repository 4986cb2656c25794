"""Checks of traces before a run, so that the engine never waits for a message or collective that cannot occur."""
