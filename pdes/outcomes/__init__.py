"""Turn the worlds at the end of a run into results, or into a report of the rows that wait and for what."""
