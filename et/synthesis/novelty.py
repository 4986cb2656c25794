"""Check that generated traces repeat nothing of the originals: no name, and no eight consecutive sizes or times."""

from collections.abc import Iterable, Sequence

from et.table import TraceTable

IN_A_ROW = 8


class Originals:
    """Names, and sequences of eight sizes or times, of the traces that were learned from."""

    def __init__(self, tables: Iterable[TraceTable]) -> None:
        self._names: set[str] = set()
        self._sequences: set[tuple[int, ...]] = set()
        for table in tables:
            self._names.update(table.names)
            self._names.update(table.group_names[1:])
            for values in _values_of(table):
                self._sequences.update(_in_a_row(values))

    def found_in(self, tables: Sequence[TraceTable]) -> str:
        """Return a description of what other traces repeat of the originals, "" for nothing."""
        for number, table in enumerate(tables):
            for name in (*table.names, *table.group_names[1:]):
                if name in self._names:
                    return f'trace {number}: the name "{name}"'
            for values in _values_of(table):
                for sequence in _in_a_row(values):
                    if sequence in self._sequences:
                        return f"trace {number}: {', '.join(map(str, sequence))} in a row"
        return ""


def _values_of(table: TraceTable) -> list[list[int]]:
    """Return the sizes of a trace's messages in order, and the times of its compute nodes."""
    sizes, micros = table.comm_size[table.comm_size > 0], table.duration_micros[table.duration_micros > 0]
    return [sizes.tolist(), micros.tolist()]


def _in_a_row(values: Sequence[int]) -> Iterable[tuple[int, ...]]:
    return (tuple(values[at : at + IN_A_ROW]) for at in range(len(values) - IN_A_ROW + 1))
