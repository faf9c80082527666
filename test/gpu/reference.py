"""reference.py FOLDER: compares what torch_memory_saver's own tests said, with its own library and with
ebb's, read from the files original-*.xml and ebb-*.xml in FOLDER that pytest wrote (--junitxml). A test
that passed with the package's own library must pass with ebb."""

import os
import pathlib
import sys
import xml.etree.ElementTree


def say(line):
    print(line, flush=True)
    with open(os.environ["GPUTEST_REPORT"], "a", encoding="utf-8") as report:
        report.write(line + "\n")


def outcome(case):
    """"passed", "skipped", or "failed" with the first line of the reason."""
    for kind in ("failure", "error"):
        if (reason := case.find(kind)) is not None:
            return "failed: " + (reason.get("message") or "no reason").splitlines()[0][:100]
    return "skipped" if case.find("skipped") is not None else "passed"


def outcomes(folder, library):
    found = {}
    for path in sorted(folder.glob(f"{library}-*.xml")):
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            found[case.get("name")] = outcome(case)
    return found


folder = pathlib.Path(sys.argv[1])
original, ebb = outcomes(folder, "original"), outcomes(folder, "ebb")
worse = 0
for name in sorted(original | ebb):
    theirs, ours = original.get(name, "not run"), ebb.get(name, "not run")
    say(f"REFERENCE {name}: original {theirs}; ebb {ours}")
    if theirs == "passed" != ours:
        worse += 1
        say(f"FAIL reference {name}: passes with the package's own library; with ebb {ours}")
held = sum(state == "passed" for state in original.values())
if held == 0:
    say("FAIL reference: no test passed with the package's own library")
elif not worse:
    say(f"PASS reference: all {held} tests that pass with the package's own library pass with ebb")
sys.exit(worse > 0 or held == 0)
