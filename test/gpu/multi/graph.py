"""graph.py OUTCOME MEETING: a rank that replays a captured CUDA graph with an all-reduce of managed memory, before and
after a pause and a resume. Rank 0 writes to the file OUTCOME what came of it: replayed, wrong, or hangs; then the MiB
that the pause left on the GPUs because others use them too, and those that did not become free. What ebb said goes to standard
error, and the caller counts it."""

import time

import torch.distributed

from gputest import *
from multi import *

COUNT = 16 * MiB  # numbers in the buffer
HANGS = 30  # seconds after which a replay counts as hanging


def outcome(graph, source, work, value):
    """What a replay does, with other numbers than before: its own word for it."""
    source.fill_(value + RANK)
    graph.replay()
    done = torch.cuda.Event()
    done.record()
    end = time.monotonic() + HANGS
    while not done.query():
        if time.monotonic() >= end:
            return "hangs"
        time.sleep(0.01)
    return "replayed" if bool((work == WORLD * value + sum(range(WORLD))).all()) else "wrong"


def main():
    deadline(2 * STEP)
    ebb, meet = Ebb(), Meeting(sys.argv[2])
    device = torch.device("cuda", LOCAL_RANK)
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl", device_id=device)
    source, work = torch.zeros(COUNT, device=device), torch.zeros(COUNT, device=device)

    def reduce():
        work.copy_(source)
        torch.distributed.all_reduce(work)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what comes first is not captured
        for _ in range(3):
            reduce()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Only this thread's calls are watched: NCCL's and PyTorch's own threads ask for events meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        reduce()
    before = [outcome(graph, source, work, value) for value in (3.0, 5.0)]
    assert before == ["replayed"] * 2, f"before the pause: {before}"

    deadline()
    meet.exchange()
    done = ebb.must_pause()
    missing = (ebb.status()["last_pause"] or {}).get("missing_bytes", 0)
    ebb.must_resume()
    meet.exchange()
    deadline(3 * HANGS)
    after = "replayed"
    for value in (7.0, 11.0, 13.0):
        after = outcome(graph, source, work, value)
        if after != "replayed":
            break
    of_all = meet.exchange([after, done.kept_bytes, missing])
    if RANK == 0:
        worst = next((word for word in ("hangs", "wrong") if any(it[0] == word for it in of_all)), "replayed")
        with open(sys.argv[1], "w", encoding="ascii") as out:
            out.write(f"{worst} {sum(it[1] for it in of_all) // MiB} {sum(it[2] for it in of_all) // MiB}\n")
    meet.exchange()
    finish(at_once=True)  # a hanging device cannot be left in an orderly way


if __name__ == "__main__":
    main()
