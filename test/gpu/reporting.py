"""How the GPU tests report. Standard library only.

A part says one line for each thing it checks, "PASS name: detail" or "FAIL name: reason", and one
"FIGURE name: value unit" for each measurement, on standard output and in the file that
GPUTEST_REPORT names, from which the scripts collect them.
"""

import contextlib
import os
import sys
import traceback

_failed = False


def _say(line):
    print(line, flush=True)
    if path := os.environ.get("GPUTEST_REPORT"):
        with open(path, "a", encoding="utf-8") as report:
            report.write(line + "\n")


def passed(name, detail=""):
    _say(f"PASS {name}: {detail}" if detail else f"PASS {name}")


def failed(name, reason):
    global _failed
    _failed = True
    _say(f"FAIL {name}: {' '.join(str(reason).split())}")


def figure(name, value, unit):
    _say(f"FIGURE {name}: {value:.2f} {unit}")


@contextlib.contextmanager
def check(name):
    """The body is one check. It may set .detail on what it is given."""

    class Detail:
        detail = ""

    note = Detail()
    try:
        yield note
    except Exception as err:  # a check that fails is reported, and the next one runs
        traceback.print_exc()
        failed(name, f"{type(err).__name__}: {err}")
    else:
        passed(name, note.detail)


def finish(at_once=False):
    """Ends a part with the status that its checks earned. at_once: without destructors, which a
    broken context would disturb."""
    sys.stdout.flush()
    (os._exit if at_once else sys.exit)(1 if _failed else 0)
