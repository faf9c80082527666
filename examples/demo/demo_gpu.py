#!/usr/bin/env python3
"""The demo on a real GPU, in PyTorch: a character-level transformer trained with AdamW.

The job runs twice. First straight through; then under `ebb run`, where the trainer is idle between
the phases of training and `ebb swap` hands its memory over: it is parked on disk, and a rollout, a
process of its own, takes nearly all that is free and generates text with the current weights. Then
the rollout ends and the trainer has its memory back. Losses and training state must be the same to
the last bit. The last line says "demo: ok ..." or "demo: FAILED ...".

To `ebb swap` the rollout is an engine that is simply started and ended (--engine-command, docs/swap.md):
this file with --engine and a word. Without the preloaded library it is trained straight through.

Needs dist/ (make build) and PyTorch with CUDA. One rank, on the first visible GPU.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
DIST = HERE.parent.parent / "dist"
CORPUS = HERE / "corpus.txt"
CHUNK_MB = 256
MiB = 1 << 20

# Left free by the rollout: what PyTorch and the driver need while it generates.
ROLLOUT_LEAVES = 256 * MiB
ROLLOUT_BLOCK = 128 * MiB


class DemoFailed(Exception):
    """The reason is the message."""


# ---- what trainer and rollout share ----------------------------------------------------------


def emit(**event):
    """Appends one JSON line to the file that the driver reads."""
    if path := os.environ.get("DEMO_EVENTS"):
        with open(path, "a", encoding="utf-8") as events:
            events.write(json.dumps(event) + "\n")


def setup_torch():
    """PyTorch, as deterministic as it can be."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        import torch
    except ImportError as err:
        raise DemoFailed(f"{sys.executable} has no PyTorch ({err}): name a Python that has it, make demo-gpu PYTHON=PATH") from err
    if not torch.cuda.is_available():
        raise DemoFailed("PyTorch finds no GPU: see nvidia-smi; make demo needs none")

    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(1)
    torch.cuda.set_device(0)
    return torch


def encode(text):
    """Newline is 0, printable ASCII follows."""
    return [0 if c == "\n" else ord(c) - 31 for c in text]


def decode(ids):
    return "".join("\n" if i == 0 else chr(i + 31) for i in ids)


VOCAB = 96
CONTEXT = 128


def make_model(torch, layers, width):
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = width // 64
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, mask):
            batch, length, _ = x.shape
            q, k, v = (
                part.view(batch, length, self.heads, 64).transpose(1, 2)
                for part in self.qkv(self.norm1(x)).split(width, dim=2)
            )
            # Written out: the backward pass of fused attention need not be deterministic.
            weights = (q @ k.transpose(2, 3) * 0.125).masked_fill(mask[:length, :length], float("-inf")).softmax(-1)
            x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.characters, self.positions = nn.Embedding(VOCAB, width), nn.Embedding(CONTEXT, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB)
            mask = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, ids):
            x = self.characters(ids) + self.positions.weight[: ids.shape[1]]
            for block in self.blocks:
                x = block(x, self.mask)
            return self.head(self.norm(x))

    return Model()


# ---- trainer ---------------------------------------------------------------------------------


class Parking:
    """The preloaded library, or nothing: then .available is false."""

    def __init__(self):
        library = ctypes.CDLL(None)
        self.available = all(hasattr(library, name) for name in ("ebb_idle_begin", "ebb_idle_end", "ebb_status"))
        if self.available:
            self._begin, self._end, self._status = library.ebb_idle_begin, library.ebb_idle_end, library.ebb_status
            self._status.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]

    @contextlib.contextmanager
    def idle(self):
        """Within it others may pause the memory, which is not used. Its end waits until all of it is back."""
        if code := self._begin():
            raise DemoFailed(f"ebb_idle_begin returned {code}")
        try:
            yield
        finally:
            code = self._end()
        if code:
            raise DemoFailed(f"ebb_idle_end returned {code}")

    def status(self):
        buffer = ctypes.create_string_buffer(1 << 16)
        if code := self._status(buffer, len(buffer), None):
            raise DemoFailed(f"ebb_status returned {code}")
        return json.loads(buffer.value)


def hash_tensor(torch, tensor):
    """A 64-bit hash of a tensor's bits. Integer sums do not depend on their order."""
    bits = tensor.detach().contiguous().view(-1).view(torch.int32)
    total = 0
    step = 1 << 22
    for start in range(0, bits.numel(), step):
        part = bits[start : start + step].to(torch.int64)
        factor = torch.arange(start, start + part.numel(), device=bits.device) * 0x5851F42D4C957F2D + 0x14057B7EF767814F
        total = (total * 31 + (part * factor).sum().item()) & (1 << 64) - 1
    return total


def digest(torch, model, optimizer):
    """A hash of everything that training keeps."""
    total = 0
    for parameter in model.parameters():
        state = optimizer.state.get(parameter, {})
        for tensor in (parameter, parameter.grad, state.get("exp_avg"), state.get("exp_avg_sq")):
            value = 1 if tensor is None else hash_tensor(torch, tensor)
            total = (total * 0x100000001B3 + value) & (1 << 64) - 1
    return f"{total:016x}"


def used_memory(torch):
    free, total = torch.cuda.mem_get_info()
    return total - free


def tenant():
    """The environment of the rollout, and of what starts it: nothing of what makes this process an actor."""
    return {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith(("TMS_", "EBB_"))}


def hand_over(to, options, cycle, weights):
    """Hands the memory over with `ebb swap`. Returns what it did to this process, and what the device had free."""
    engine = shlex.join([
        sys.executable, __file__, "--engine", str(weights), "--cycle", str(cycle), "--trainer", str(os.getpid()),
        "--layers", str(options.layers), "--width", str(options.width),
    ])
    command = [
        str(DIST / "bin/ebb"), "swap", "--to", to, "--pid", str(os.getpid()), "--engine-command", engine,
        "--timeout", str(options.timeout), "--json",
    ]
    done = subprocess.run(command, env=tenant(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise DemoFailed(f"the hand-over to {to} of cycle {cycle} ended with {done.returncode}: {done.stderr.strip()}")
    steps = {step["step"]: step for step in json.loads(done.stdout)["steps"]}
    return steps["rank"], steps["memory"]


def planned(cycle):
    """Seconds that `ebb plan --live` predicts for the next pause and resume of this process, or {}: the first ones
    have nothing to be told by."""
    if cycle == 1:
        return {}
    command = [str(DIST / "bin/ebb"), "plan", "--live", "--pid", str(os.getpid()), "--json"]
    done = subprocess.run(command, env=tenant(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise DemoFailed(f"ebb plan --live before cycle {cycle} ended with {done.returncode}: {done.stderr.strip()}")
    (rank,) = json.loads(done.stdout)["ranks"]
    return {verb: rank[verb]["seconds"]["typical"] for verb in ("pause", "resume")}


def give_memory_to_rollout(torch, options, parking, model, cycle):
    weights = pathlib.Path(os.environ["DEMO_WEIGHTS"])
    torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, weights)
    torch.cuda.synchronize()
    before = used_memory(torch)
    plan = planned(cycle)
    with parking.idle():
        rank, memory = hand_over("rollout", options, cycle, weights)
        # The memory was measured when the trainer was paused, before the rollout began.
        emit(event="pause", cycle=cycle, seconds=rank["seconds"], planned=plan, status=parking.status(), before=before,
             during=memory["total_bytes"] - memory["bytes"])
        rank, _ = hand_over("train", options, cycle, weights)
        status = parking.status()
    emit(event="resume", cycle=cycle, seconds=rank["seconds"], status=status, after=used_memory(torch))


def train(options):
    torch = setup_torch()
    parking = Parking()
    emit(event="start", parking=parking.available)
    text = torch.tensor(encode(CORPUS.read_text(encoding="ascii")), device="cuda")
    model = make_model(torch, options.layers, options.width).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    draw = torch.Generator().manual_seed(2)
    window = torch.arange(CONTEXT + 1, device="cuda")
    step = 0
    for phase in range(options.cycles + 1):
        if phase > 0 and parking.available:
            give_memory_to_rollout(torch, options, parking, model, phase)
        emit(event="digest", step=step, digest=digest(torch, model, optimizer))
        for _ in range(options.steps):
            starts = torch.randint(len(text) - CONTEXT, (32, 1), generator=draw).cuda()
            batch = text[starts + window]
            optimizer.zero_grad(set_to_none=False)
            logits = model(batch[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), batch[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
            value = loss.item()
            print(f"step {step} loss {value.hex()} ({value:.4f})", flush=True)
            emit(event="loss", step=step, loss=value.hex())
            step += 1
    emit(event="digest", step=step, digest=digest(torch, model, optimizer))
    emit(event="end")


# ---- rollout ---------------------------------------------------------------------------------


def generate(torch, model, cycle, length=160):
    draw = torch.Generator().manual_seed(cycle)
    ids = encode("The boat")
    with torch.no_grad():
        while len(ids) < length:
            logits = model(torch.tensor([ids[-CONTEXT:]], device="cuda"))[0, -1].cpu()
            ids.append(torch.multinomial((logits / 0.7).softmax(0), 1, generator=draw).item())
    return decode(ids)


def rollout(options):
    """Takes nearly all free memory as a cache of keys and values would, writes a pattern to it,
    generates, and checks the pattern. This small model needs no such cache. Then it says that it is
    ready, and keeps its memory until it is told to end, or the trainer has ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    torch = setup_torch()
    model = make_model(torch, options.layers, options.width)
    model.load_state_dict(torch.load(options.rollout, map_location="cpu", weights_only=True))
    model = model.cuda().eval()
    generate(torch, model, options.cycle, 12)  # what generating needs, before the rest is taken
    torch.cuda.synchronize()

    scratch = torch.empty(1 << 22, dtype=torch.int64, device="cuda")
    free, total = torch.cuda.mem_get_info()
    count = max(0, free - ROLLOUT_LEAVES) // ROLLOUT_BLOCK
    words = ROLLOUT_BLOCK // 8
    seeds = [(n << 32) + (options.cycle % 64 << 56) for n in range(count)]
    pattern = torch.arange(words, dtype=torch.int64, device="cuda")  # block 0 is what the others are made from
    blocks = [pattern]
    try:
        for seed in seeds[1:]:
            blocks.append(torch.empty(words, dtype=torch.int64, device="cuda"))
            torch.add(pattern, seed, out=blocks[-1])
    except torch.OutOfMemoryError as err:
        raise DemoFailed(f"only {len(blocks)} of {count} blocks of {ROLLOUT_BLOCK} bytes: {err}") from err
    had = len(blocks) * ROLLOUT_BLOCK
    free_while, _ = torch.cuda.mem_get_info()
    if had < free * 9 // 10:
        raise DemoFailed(f"the rollout had {had} of the {free} bytes that were free")

    text = generate(torch, model, options.cycle)
    for block, seed in zip(blocks[1:], seeds[1:]):
        for start in range(0, words, len(scratch)):
            torch.sub(block[start : start + len(scratch)], pattern[start : start + len(scratch)], out=scratch)
            if not bool((scratch == seed).all()):
                raise DemoFailed("the rollout's memory does not hold what was written to it")
    text = " ".join(text.split())
    print(f"rollout {options.cycle}: {text}", flush=True)
    emit(event="rollout", cycle=options.cycle, bytes=had, free=free, free_while=free_while, total=total, sample=text)
    be_ready(options)


def be_ready(options):
    os.write(options.ready, b"ready")
    os.close(options.ready)
    while not signal.sigtimedwait({signal.SIGTERM}, 0.2):
        if not os.path.exists(f"/proc/{options.trainer}"):
            raise DemoFailed("the trainer has ended")


# ---- the rollout as `ebb swap` sees it -------------------------------------------------------


def engine(options):
    """Does what the word says: status, wake or sleep (docs/swap.md)."""
    note = options.engine.with_suffix(".rollout")  # names the process of the rollout while there is one
    running = None
    if note.exists():
        with contextlib.suppress(ProcessLookupError):
            running = os.pidfd_open(int(note.read_text(encoding="ascii")))
    if options.word == "status":
        print("awake" if running is not None and not ended(running, 0) else "asleep")
    elif options.word == "wake":
        start_rollout(options, note)
    elif running is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(running, signal.SIGTERM)
        ended(running, None)
        note.unlink()


def ended(process, timeout):
    """Waits for the end of a process, so many milliseconds or, with None, for ever."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(timeout))


def start_rollout(options, note):
    """Returns when the rollout has its memory and has generated."""
    read, write = os.pipe()
    log = options.engine.with_suffix(".log")
    command = [
        sys.executable, __file__, "--rollout", str(options.engine), "--cycle", str(options.cycle), "--trainer", str(options.trainer),
        "--ready", str(write), "--layers", str(options.layers), "--width", str(options.width),
    ]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[write])
    os.close(write)
    note.write_text(str(process.pid), encoding="ascii")
    if os.read(read, 5) != b"ready":
        note.unlink()
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        raise DemoFailed(f"it ended with status {process.wait()}: {' | '.join(tail)}")


# ---- driver ----------------------------------------------------------------------------------


class Job:
    """What one run reported."""

    def __init__(self, events):
        self.losses, self.digests, self.cycles = {}, {}, {}
        self.parking, self.ended = None, False
        for event in events:
            kind = event["event"]
            if kind == "start":
                self.parking = event["parking"]
            elif kind == "loss":
                self.losses[event["step"]] = event["loss"]
            elif kind == "digest":
                self.digests[event["step"]] = event["digest"]
            elif kind == "end":
                self.ended = True
            else:
                self.cycles.setdefault(event["cycle"], {})[kind] = event

    def check(self, options, parking):
        steps = (options.cycles + 1) * options.steps
        if self.parking is None or not self.ended:
            raise DemoFailed("the trainer did not run to its end")
        if self.parking != parking:
            raise DemoFailed("no library was preloaded" if parking else "a library is preloaded where none should be")
        if sorted(self.losses) != list(range(steps)) or len(self.digests) != options.cycles + 2:
            raise DemoFailed(f"{len(self.losses)} losses and {len(self.digests)} digests were reported")


def check_cycle(number, cycle):
    """One row of the table, or DemoFailed."""
    if missing := {"pause", "rollout", "resume"} - cycle.keys():
        raise DemoFailed(f"cycle {number}: no report of {', '.join(sorted(missing))}")
    pause, rollout_, resume = cycle["pause"], cycle["rollout"], cycle["resume"]
    for verb, event in (("pause", pause), ("resume", resume)):
        if error := event["status"][f"last_{verb}"].get("error"):
            raise DemoFailed(f"cycle {number}: {verb}: {error}")
    parked = pause["status"]["last_pause"]["bytes"]
    if parked == 0 or resume["status"]["bytes_paused"] != 0:
        raise DemoFailed(f"cycle {number}: {parked} bytes parked, {resume['status']['bytes_paused']} still after resume")
    freed = pause["before"] - pause["during"]
    # The driver may take a little for itself at the first pause.
    if freed < parked - 64 * MiB:
        raise DemoFailed(f"cycle {number}: {parked} bytes were parked, but the driver has only {freed} more")
    if rollout_["bytes"] < rollout_["free"] * 9 // 10:
        raise DemoFailed(f"cycle {number}: the rollout had {rollout_['bytes']} of {rollout_['free']} free bytes")
    if rollout_["free_while"] >= parked:
        raise DemoFailed(f"cycle {number}: the rollout would have fitted beside the trainer: nothing is shown")
    return {
        "cycle": number,
        "parked_bytes": parked,
        "planned": pause["planned"],
        "pause_seconds": pause["seconds"],
        "pause_gb_per_s": parked / pause["seconds"] / 1e9,
        "resume_seconds": resume["seconds"],
        "resume_gb_per_s": parked / resume["seconds"] / 1e9,
        "device_used_before": pause["before"],
        "device_used_while": pause["during"],
        "device_used_after": resume["after"],
        "rollout_bytes": rollout_["bytes"],
        "staging_bytes": pause["status"]["staging_bytes"],
        "sample": rollout_["sample"],
    }


def compare(plain, parked):
    for what, a, b in (("training state", plain.digests, parked.digests), ("loss", plain.losses, parked.losses)):
        for step in sorted(a.keys() | b.keys()):
            if a.get(step) != b.get(step):
                raise DemoFailed(f"{what} at step {step} differs: {a.get(step)} without parking, {b.get(step)} with")


def run_job(options, name, prefix, directory, deadline):
    """Runs the trainer to its end; returns what it reported and how many seconds it took."""
    events, log = directory / f"{name}.events", directory / f"{name}.log"
    events.touch()
    command = [
        *prefix, sys.executable, str(HERE / "demo_gpu.py"), "--train", "--cycles", str(options.cycles),
        "--steps", str(options.steps), "--layers", str(options.layers), "--width", str(options.width),
    ]
    environment = dict(os.environ, DEMO_EVENTS=str(events), DEMO_WEIGHTS=str(directory / "weights.pt"))
    start = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            status = process.wait(timeout=max(1, deadline - start))
        except BaseException as err:
            stop(process)
            print(f"| {name}: last seen: {events.read_text(encoding='utf-8').splitlines()[-1:]}", flush=True)
            if isinstance(err, subprocess.TimeoutExpired):
                raise DemoFailed(f"the run {name} was not finished after {options.timeout} seconds") from None
            raise
    seconds = time.monotonic() - start
    if status:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
        print("\n".join(f"| {line}" for line in tail), flush=True)
        raise DemoFailed(f"the run {name} ended with status {status}")
    lines = events.read_text(encoding="utf-8").splitlines()
    return Job(json.loads(line) for line in lines), seconds


def stop(process):
    """Ends a job: asks first, so that ebb removes its files, then kills the whole session."""
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def print_table(rows):
    def mb(n):
        return f"{n / 1e6:.0f}"

    print()
    print("        parked       pause            resume       device memory used, MB    rollout  staging")
    print("cycle       MB      s    GB/s        s    GB/s     before   while   after         MB       MB")
    for row in rows:
        print(
            f"{row['cycle']:5d}  {mb(row['parked_bytes']):>7}  {row['pause_seconds']:5.2f}  {row['pause_gb_per_s']:6.2f}"
            f"    {row['resume_seconds']:5.2f}  {row['resume_gb_per_s']:6.2f}    {mb(row['device_used_before']):>7}"
            f" {mb(row['device_used_while']):>7} {mb(row['device_used_after']):>7}    {mb(row['rollout_bytes']):>7}"
            f"  {mb(row['staging_bytes']):>7}")
    for verb in ("pause", "resume"):
        errors = [row["planned"][verb] / row[f"{verb}_seconds"] - 1 for row in rows if row["planned"]]
        if errors:
            print(f"ebb plan --live of the next {verb}: " + ", ".join(f"{error:+.0%}" for error in errors) + " of what it took")
    print()
    for row in rows:
        print(f"rollout {row['cycle']}: {row['sample']}"[:100])
    print(flush=True)


def drive(options):
    """The whole demo; returns the fields of the last line."""
    for need in ("bin/ebb", "lib/libebb.so", "lib/libebb-engine.so"):
        if not (DIST / need).exists():
            raise DemoFailed(f"{DIST / need} is not built: run make build")
    base = pathlib.Path(os.environ.get("EBB_DEMO_DIR") or DIST.parent / "build")
    base.mkdir(parents=True, exist_ok=True)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="demo-gpu-", dir=base.resolve()))
    deadline = time.monotonic() + options.timeout
    try:
        disk = directory / "disk"
        disk.mkdir(mode=0o700)
        plain, seconds = run_job(options, "without parking", [], directory, deadline)
        plain.check(options, parking=False)
        first, last = (float.fromhex(plain.losses[step]) for step in (0, max(plain.losses)))
        print(f"without parking  {len(plain.losses):4d} steps  {seconds:5.1f} s  loss {first:.3f} to {last:.3f}", flush=True)

        prefix = [
            str(DIST / "bin/ebb"), "run", "--device", "cuda", "--nproc-per-node", "1", "--offload-train",
            "--offload-train-target", "disk", "--offload-train-disk-dir", str(disk),
            "--offload-train-disk-chunk-mb", str(CHUNK_MB), "--grace", "10s", "--",
        ]
        parked, seconds = run_job(options, "under ebb", prefix, directory, deadline)
        # ebb's own folder for leases stays in a disk directory; it is empty when nobody runs.
        left = sum(1 for path in disk.rglob("*") if path != disk / ".ebb")
        parked.check(options, parking=True)
        print(f"under ebb        {len(parked.losses):4d} steps  {seconds:5.1f} s", flush=True)
        rows = [check_cycle(n, parked.cycles.get(n, {})) for n in range(1, options.cycles + 1)]
        print_table(rows)
        compare(plain, parked)
        if left:
            raise DemoFailed(f"{left} files or directories are left in the disk directory")
        return {
            "ranks": 1,
            "cycles": len(rows),
            "parked_bytes": rows[0]["parked_bytes"],
            "loss_identical": "true",
            "staging_bytes": max(row["staging_bytes"] for row in rows),
            "files_left": left,
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def number(low, high):
    def parse(text):
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not from {low} to {high}")
        return value

    return parse


def main():
    parser = argparse.ArgumentParser(description="Trains on a GPU with and without parking and compares.")
    parser.add_argument("--cycles", type=number(1, 1000), default=4, help="pauses, each with a rollout")
    parser.add_argument("--steps", type=number(1, 10000), default=10, help="training steps before each cycle and after the last")
    parser.add_argument("--layers", type=number(1, 200), default=12, help="layers of the transformer")
    parser.add_argument("--width", type=number(1, 16384), default=768, help="width of the transformer, a multiple of 64")
    parser.add_argument("--timeout", type=number(1, 86400), default=900, help="give up after so many seconds")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rollout", metavar="WEIGHTS", help=argparse.SUPPRESS)
    parser.add_argument("--engine", metavar="WEIGHTS", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--trainer", type=number(0, 1 << 30), default=0, help=argparse.SUPPRESS)
    parser.add_argument("--ready", type=number(0, 1 << 20), default=0, help=argparse.SUPPRESS)
    parser.add_argument("word", nargs="?", choices=("status", "wake", "sleep"), help=argparse.SUPPRESS)
    parser.add_argument("--cycle", type=number(0, 1000), default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.width % 64:
        parser.error(f"--width {options.width} is not a multiple of 64")

    for name, part in (("train", train), ("rollout", rollout), ("engine", engine)):
        if getattr(options, name):
            try:
                return part(options)
            except DemoFailed as err:
                print(f"{name}: {err}", file=sys.stderr, flush=True)
                return 1

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves through the clean-up
    try:
        fields = drive(options)
    except KeyboardInterrupt:
        print("demo: FAILED interrupted", flush=True)
        return 1
    except (DemoFailed, OSError, ValueError, KeyError) as err:
        print(f"demo: FAILED {' '.join(f'{err}'.split()) or type(err).__name__}", flush=True)
        return 1
    print("demo: ok " + " ".join(f"{name}={value}" for name, value in fields.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
