"""python3 -m ebb preload-path | version"""

from __future__ import annotations

import argparse
import sys

from . import Error, __version__, library_path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m ebb", description="Parks GPU memory of Python programs.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("preload-path", help="print the path of libebb.so, for LD_PRELOAD")
    verbs.add_parser("version", help="print the version of this package")
    if parser.parse_args().verb == "version":
        print(__version__)
        return 0
    try:
        print(library_path())
    except Error as err:
        print(f"ebb: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
