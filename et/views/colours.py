"""The colour of each kind of node, light enough for black text."""

COLOURS = {
    "host": "#d9d9d9",
    "compute": "#b3de69",
    "memory": "#fdb462",
    "collectives": "#80b1d3",
    "sends": "#fb8072",
    "receives": "#fccde5",
    "metadata": "#ffffff",
}
