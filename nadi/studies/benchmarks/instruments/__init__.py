"""What engine and machine are measured with.

`calibration`: what this machine does of what every simulator of events does. `recording`: what a run does in each
window, and what ranks would take for it; `parcel_costs`: what their parcels cost. The last two are of the scaling study
(scripts/scaling_study.py, docs/explanation/performance.md).
"""
