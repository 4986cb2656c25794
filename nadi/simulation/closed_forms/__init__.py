"""Closed forms (docs/explanation/fidelity.md): times of collectives and messages on an idle fabric, and runs of them.

Modules in reading order: `lone_message`, a message alone on its path; `isolated` and `collective`, a collective alone
on the fabric, its simulated time or that of a formula; `position` and `costs`, each kind of group once, at any size;
`advancing` and `running`, programs whose collectives and messages take these times.
"""

from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.advancing.equivalence import CollectiveKeys, MessageKeys, slots_of
from nadi.simulation.closed_forms.advancing.run import compile_closed_form
from nadi.simulation.closed_forms.collective import ClosedForm, busiest_member_ps, closed_form, payload_shape
from nadi.simulation.closed_forms.costs import PLANNER_EFFORT, SWEEP_EFFORT, WHAT_IF_EFFORT, CollectiveCosts, Curve
from nadi.simulation.closed_forms.isolated import IsolatedCollectives, program_of, with_flows
from nadi.simulation.closed_forms.lone_message import UNKNOWN, ideal_ps, shares_of, slowdown
from nadi.simulation.closed_forms.position import GroupPositions
from nadi.simulation.closed_forms.running import sent_by_ports
