"""`nadi diagnose`: whether measured times of collectives are healthy, and which cause explains them if not.

Modules in reading order: `simulating`, times of collectives on a changed cluster; `causes`, the catalogue of changes;
`likelihood`, how well each explains what was measured; `diagnosing`, from logs to a diagnosis; `gate` and `report`, its
threshold and its text.
"""

from nadi.studies.diagnosis.diagnosing import Diagnosis, diagnose, read
from nadi.studies.diagnosis.gate import BandwidthGate
from nadi.studies.diagnosis.report import diagnosis_tables
