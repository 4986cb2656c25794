"""Runs at closed forms (docs/fidelity.md): what collectives and messages cost, each once, and NPUs that do the same."""

from nadi.closed_forms.costs import CollectiveCosts, Costed
from nadi.closed_forms.running import costed, formulas, laid_out, run

__all__ = ["CollectiveCosts", "Costed", "costed", "formulas", "laid_out", "run"]
