"""Closed forms (docs/fidelity.md): what collectives and messages take on an idle fabric, and runs made of them."""
