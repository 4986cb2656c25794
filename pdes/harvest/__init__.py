"""Turn the worlds at the end of a run into results, or into a report of which row waits for what."""
