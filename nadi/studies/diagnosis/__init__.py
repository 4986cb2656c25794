"""`nadi diagnose`: whether measured times of collectives are healthy, and which cause explains them if not.

Modules in reading order: `simulating`, times of collectives on a changed cluster; `causes`, the catalogue of changes;
`likelihood`, errors of predictions and densities; `rows`, measured beside healthy times; `places`, which rows meet a
local cause; `evidence`, what the text of logs says; `hypotheses`, how well each cause explains the rows;
`next_measurement`, what separates two; `diagnosing`, from logs to a diagnosis; `gate`, `report` and `page`, its
threshold, text and page.
"""

from nadi.studies.diagnosis.diagnosing import Diagnosis, diagnose, read
from nadi.studies.diagnosis.gate import BandwidthGate
from nadi.studies.diagnosis.page import diagnosis_page, write_page
from nadi.studies.diagnosis.report import diagnosis_tables
