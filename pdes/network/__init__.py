"""Links and switches: how packets cross the fabric, wait, are paused, marked, lost, and find their way."""
