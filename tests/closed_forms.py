"""A run of a program at closed forms, without a run file; the closed form of a program's collective."""

import numpy as np

from nadi.launching.progress import NoProgress
from nadi.pdes import Settings
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.collective import closed_form
from nadi.simulation.closed_forms.costs import CollectiveCosts


def form_of_all(graph, program, kind, algorithm, settings=None, **more):
    """Return the closed form of the collective of all NPUs that is the whole program."""
    size_bytes, schedule = int(program.node_bytes[0]), int(program.node_schedule[0])
    more |= {"schedule": schedule, "members": np.arange(graph.npus), "size_bytes": size_bytes}
    return closed_form(graph, program, settings or Settings(), kind=kind, algorithm=algorithm, **more)


def at_closed_forms(graph, program, settings, collectives):
    costs = CollectiveCosts(graph, settings)
    folded = running.laid_out(graph, program, costs)
    costed = running.costed(folded, costs, collectives)
    return folded, running.run(graph, folded, costed, costs, settings, NoProgress())
