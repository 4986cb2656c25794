"""Prints each finding on a line; exit code 1 if there is any."""

import sys

from tests.rules import annotations, documents, doors, kernels, places, rooms, rows, sizes

MODULES = (annotations, documents, doors, kernels, places, rooms, rows, sizes)


def main():
    found = [str(finding) for module in MODULES for finding in module.findings()]
    sys.stdout.writelines(f"{finding}\n" for finding in found)
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
