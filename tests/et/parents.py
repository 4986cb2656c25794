"""The nodes of a table that a node waits for, by data or by control."""


def parents_of(table, row):
    return table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]].tolist()


def names_of_parents(table, row):
    return {table.names[parent] for parent in parents_of(table, row)}


def all_before(table):
    """Rows that each row waits for, itself or by others; rows come after their parents."""
    found = []
    for row in range(len(table)):
        own = set(parents_of(table, row))
        found.append(own.union(*(found[parent] for parent in own)))
    return found
