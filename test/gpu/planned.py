"""What `ebb plan --live` says of this process beforehand, beside what its pauses and resumes then took."""

import json
import os
import pathlib
import statistics
import subprocess

from reporting import figure

EBB = pathlib.Path(__file__).resolve().parents[2] / "dist/bin/ebb"


class Planned:
    def __init__(self):
        self.errors = {"pause": [], "resume": []}  # percent of what it took; above 0, it took less
        self._said = {}

    def ask(self):
        """Has the next pause and resume predicted. Nothing of ebb's own rates is given: from the latest ones."""
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("TMS_")}
        command = [str(EBB), "plan", "--live", "--pid", str(os.getpid()), "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"ebb plan --live: status {done.returncode}: {done.stderr}"
        (rank,) = json.loads(done.stdout)["ranks"]
        self._said = {verb: rank[verb]["seconds"]["typical"] for verb in self.errors}

    def took(self, verb, seconds):
        self.errors[verb].append((self._said[verb] / seconds - 1) * 100)

    def report(self, kind):
        for verb, errors in self.errors.items():
            figure(f"{kind} planned next {verb}, median error", statistics.median(map(abs, errors)), "%")
            figure(f"{kind} planned next {verb}, worst", max(errors, key=abs), "%")
