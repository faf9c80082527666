#!/bin/bash
# Measures what preloading libebb.so adds to the shortest process there is: bench-preload.sh [RUNS]
# Runs with and without are interleaved; prints the median of each and their difference. No test.
set -euo pipefail
runs=${1:-1000}
library=$(cd "$(dirname "$0")/../../dist/lib" && pwd)/libebb.so

python3 - "$runs" "$library" <<'PYTHON'
import os, statistics, sys, time

runs, library = int(sys.argv[1]), sys.argv[2]
plain = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
environments = {"without": plain, "with": {**plain, "LD_PRELOAD": library}}
times = {name: [] for name in environments}
for i in range(runs + 20):
    for name, environment in environments.items():
        start = time.perf_counter_ns()
        pid = os.posix_spawn("/bin/bash", ["bash", "-c", "true"], environment)
        os.waitpid(pid, 0)
        if i >= 20:  # the first runs warm the caches
            times[name].append((time.perf_counter_ns() - start) / 1e3)
median = {name: statistics.median(values) for name, values in times.items()}
print(f"bash -c true, median of {runs}: {median['without']:.0f} us without, {median['with']:.0f} us with libebb.so, "
      f"difference {median['with'] - median['without']:.0f} us")
PYTHON
