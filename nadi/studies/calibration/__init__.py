"""`nadi calibrate`: the few constants that may differ on a site, fitted to its measured collectives and steps.

Modules in reading order: `rows`, measured times with those that are held out and those that are defects; `constants`,
what may be fitted and how far it may be from its cited value; `model`, the times of rows at any values of constants;
`steps`, the same for training steps; `fitting`, which constants the rows bear, and their values; `calibrating`, all of
it in order; `site_keys` and `cluster_file`, what is written; `report`, what is printed.
"""

from nadi.studies.calibration.calibrating import (
    Calibration,
    CalibrationRefusedError,
    calibrate,
    calibrate_site,
    calibrate_steps,
)
from nadi.studies.calibration.cluster_file import write_cluster
from nadi.studies.calibration.report import calibration_document, calibration_tables
from nadi.studies.calibration.rows import read_rows
from nadi.studies.calibration.steps import read_steps
