#!/usr/bin/env bash
# What the preloaded library costs a process that uses no GPU: the time of `bash -c true` with and
# without LD_PRELOAD=libebb.so, in turn, medians of many runs. A measurement, not a test.
#
#   scripts/bench-preload.sh [RUNS]     default 1000
set -euo pipefail
cd "$(dirname "$0")/.."
library=$PWD/dist/lib/torch_memory_saver/libebb.so
[[ -e $library ]] || { echo "bench-preload: $library is missing (make build)" >&2; exit 2; }

exec python3 - "$library" "${1:-1000}" <<'PYTHON'
import os, shutil, statistics, sys, time

library, runs = sys.argv[1], int(sys.argv[2])
bash = shutil.which("bash")
plain = {"PATH": os.environ["PATH"]}
environments = {"without": plain, "with": {**plain, "LD_PRELOAD": library}}
milliseconds = {name: [] for name in environments}
for _ in range(runs):
    for name, environment in environments.items():
        begin = time.perf_counter()
        pid = os.posix_spawn(bash, ["bash", "-c", "true"], environment)
        _, status = os.waitpid(pid, 0)
        milliseconds[name].append((time.perf_counter() - begin) * 1e3)
        if status:
            sys.exit(f"bench-preload: bash -c true ended with status {status} {name} the library")
median = {name: statistics.median(values) for name, values in milliseconds.items()}
for name, values in milliseconds.items():
    low, high = statistics.quantiles(values, n=20)[0], statistics.quantiles(values, n=20)[-1]
    print(f"bash -c true {name:8} the library: median {median[name]:.3f} ms (5 % {low:.3f}, 95 % {high:.3f}, {runs} runs)")
print(f"bench-preload: {median['with'] - median['without']:.3f} ms more")
PYTHON
