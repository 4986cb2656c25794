"""Sweeps of `nadi sweep`: `read_sweep` reads the points, `run_points` runs them, `finish` writes table and page."""

from nadi.studies.sweeps.page import MAX_PRINTED, points_table
from nadi.studies.sweeps.points import SweepDefinition, read_sweep, settings_of
from nadi.studies.sweeps.running import PointOutcome, earlier_outcomes, finish, outcome_text, run_points, sweep_script
