"""demo_gpu_handover.py DIRECTORY: the hand-overs of examples/demo/demo_gpu.py on the software device, where there is no PyTorch.

Trainer, `ebb swap` and engine are the demo's own; only what the rollout does with its memory is not: it takes as
much of the device as is free while the trainer is parked, and no less would show that.
"""

import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples/demo"))
sys.dont_write_bytecode = True
import demo_gpu

from gpu import *

SIZE = 100 * MiB  # of a device of 160


class Options:
    layers, width, timeout = 2, 64, 120


def rollout(options):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    malloc(SIZE)
    demo_gpu.be_ready(options)


if "--rollout" in sys.argv or "--engine" in sys.argv:
    demo_gpu.__file__, demo_gpu.rollout = __file__, rollout
    sys.exit(demo_gpu.main())

demo_gpu.__file__ = __file__
weights = pathlib.Path(sys.argv[1]) / "weights.pt"
address, pattern = malloc(SIZE), Pattern(1, SIZE)
pattern.write(address)
parking = demo_gpu.Parking()
for cycle in (1, 2):
    plan = demo_gpu.planned(cycle)
    assert plan == {} if cycle == 1 else min(plan["pause"], plan["resume"]) > 0, plan
    with parking.idle():
        rank, memory = demo_gpu.hand_over("rollout", Options, cycle, weights)
        assert rank["bytes"] == parking.status()["bytes_paused"] == SIZE, (rank, parking.status())
        assert memory["bytes"] >= SIZE, memory
        assert weights.with_suffix(".rollout").exists(), "no rollout is noted"
        rank, memory = demo_gpu.hand_over("train", Options, cycle, weights)
        assert rank["bytes"] == SIZE and parking.status()["bytes_paused"] == 0, (rank, parking.status())
    pattern.check(address)
assert not weights.with_suffix(".rollout").exists(), "the rollout is noted yet"
print("handed over")
