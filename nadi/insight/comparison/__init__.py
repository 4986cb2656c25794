"""Finished runs beside each other: settings, figures, kinds of time, collectives, tiers and links.

The first run is what the others are compared with. Runs of other fabrics, plans or numbers of NPUs are compared as far
as that means something; `document` says in its notes what is not.
"""
