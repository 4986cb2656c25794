"""`nadi diagnose`: whether measured times of collectives are healthy, and which cause explains them if not.

Modules in reading order: `simulating`, times of collectives on a changed cluster; `causes`, the catalogue of changes;
`likelihood`, how well each explains what was measured; `diagnosing`, from logs to a diagnosis; `report`, its text.
"""

from nadi.studies.diagnosis.diagnosing import Diagnosis, diagnose
