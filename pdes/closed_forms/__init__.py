"""Collectives and messages at their closed forms, and the messages of one group on an idle fabric."""
