"""Measurements of the engine and of the machine.

`calibration`: event-heap speed of this machine. `recording`: work of a run in each window, and its projected time on
many ranks; `parcel_costs`: cost of parcels between teams; `meeting_costs`: cost of reading other workers' cache lines.
The last three serve the scaling study (scripts/scaling_study.py, docs/explanation/performance.md).
"""
