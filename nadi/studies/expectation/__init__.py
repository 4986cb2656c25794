"""What nccl-tests should show on a cluster, by collective, size and number of hosts (`nadi expect`)."""

from nadi.studies.expectation.expecting import expect
from nadi.studies.expectation.page import expectation_page, expectation_table, written
from nadi.studies.expectation.rows import KINDS, ClusterQuestion, Expectation, ExpectedRow
