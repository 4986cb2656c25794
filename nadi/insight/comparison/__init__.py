"""Comparison of finished runs: settings, metrics, time by category, collectives, tiers and links.

The first run is the baseline. Runs of other fabrics, plans or numbers of NPUs are compared as far
as that is meaningful; the notes of `document` list what is not compared.
"""
