"""Runs at closed forms (docs/fidelity.md): what collectives and messages cost, each once, and NPUs that do the same."""

from nadi.closed_forms.costs import CollectiveCosts, Costed
from nadi.closed_forms.curves import OF_A_RUN, OF_PLANS, Effort
from nadi.closed_forms.running import costed, formulas, laid_out, run

__all__ = ["OF_A_RUN", "OF_PLANS", "CollectiveCosts", "Costed", "Effort", "costed", "formulas", "laid_out", "run"]
