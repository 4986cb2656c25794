"""Traces as graphs to look at: a bounded part of them, as DOT, GraphML or SVG, with a file per format."""

from nadi.et.views.drawings import drawn
from nadi.et.views.picture import Edge, NodeFilter, Picture, PictureNode, picture
