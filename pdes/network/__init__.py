"""Links and switches: how packets cross the fabric, wait, are paused, marked or lost, and how they are routed."""
