"""A run of a program at closed forms, without a run file."""

from nadi.launching.progress import NoProgress
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.costs import CollectiveCosts


def at_closed_forms(graph, program, settings, collectives):
    costs = CollectiveCosts(graph, settings)
    folded = running.laid_out(graph, program, costs)
    costed = running.costed(folded, costs, collectives)
    return folded, running.run(graph, folded, costed, costs, settings, NoProgress())
