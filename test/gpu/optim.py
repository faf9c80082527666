"""Optimizers with streamed state on a GPU: the bits of PyTorch's own AdamW over fp32 masters, alone and together with
parking; what memory they take; and how fast a step is, against one bucket after the other and against what
the disk does without ebb. All that is compared with each other is measured in turn within one run.

GPUTEST_OPTIM_MILLIONS  elements whose step is timed, default 300: 12 bytes of state each
GPUTEST_OPTIM_ROUNDS    of timing, default 5
"""

import ctypes
import os
import statistics
import tempfile
import threading
import time

import torch

import ebb
import ebb.optim
import ebb.torch
from gputest import MiB, HostMemory, check, figure, finish
from rawdisk import RawDisk
from train import BATCH, LENGTH, VOCABULARY, Model

STEPS = 50
CYCLES = 4
ELEMENTS = int(os.environ.get("GPUTEST_OPTIM_MILLIONS", "300")) * 1_000_000
ROUNDS = int(os.environ.get("GPUTEST_OPTIM_ROUNDS", "5"))
BUCKETS = 8
STATE_BYTES = 12  # of an element: master and two moments
DISK = os.environ["TMS_DISK_BACKUP_DIR"]
# What the driver and PyTorch take beside, for kernels and the temporaries of an update.
SLACK = 64 * MiB


class Masters:
    """PyTorch's AdamW over fp32 masters of a model's parameters."""

    def __init__(self, parameters, **options):
        self.parameters = list(parameters)
        self.masters = [torch.nn.Parameter(p.detach().float()) for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, **options)

    @torch.no_grad()
    def step(self):
        for parameter, master in zip(self.parameters, self.masters):
            master.grad = parameter.grad.float()
        self.optimizer.step()
        for parameter, master in zip(self.parameters, self.masters):
            parameter.copy_(master)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def close(self):
        pass


def losses(make, steps, managed=False, between=lambda number: None):
    """Of a training in bf16, exactly. make: the optimizer for parameters. managed: the model is in a region."""
    torch.manual_seed(1)
    model = Model()
    if managed:
        with ebb.torch.region(tag="model", backup="disk"):
            model = model.to("cuda", torch.bfloat16)
    else:
        model = model.to("cuda", torch.bfloat16)
    optimizer, seen = make(model.parameters()), []
    for number in range(steps):
        start = torch.randint(0, VOCABULARY, (BATCH, 1), device="cuda")
        tokens = (start + 17 * torch.arange(LENGTH + 1, device="cuda")) % VOCABULARY
        logits = model(tokens[:, :-1]).flatten(0, 1).float()
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item().hex())
        optimizer.zero_grad()
        between(number)
    optimizer.close()
    return seen


def bits():
    torch.use_deterministic_algorithms(True)
    plain = {}
    for flavour in ("foreach", "fused"):
        options = {"lr": 3e-4, flavour: True}
        with check(f"optim, {STEPS} steps, {flavour}") as note:
            plain[flavour] = losses(lambda p: Masters(p, **options), STEPS)
            mine = losses(lambda p: ebb.optim.StreamedAdamW(p, bucket_elements=10_000_000, **options), STEPS)
            different = sum(a != b for a, b in zip(plain[flavour], mine))
            assert different == 0, f"{different} of {STEPS} losses differ"
            assert float.fromhex(mine[-1]) < float.fromhex(mine[0]), "nothing was learnt"
            note.detail = "0 bits differ"
    with check(f"optim, parked {CYCLES} times") as note:
        paused = []

        def park(number):
            if number < CYCLES:
                result = ebb.pause()
                ebb.resume()
                paused.append(result.bytes)

        mine = losses(
            lambda p: ebb.optim.StreamedAdamW(p, lr=3e-4, fused=True, bucket_elements=10_000_000),
            STEPS, managed=True, between=park,
        )
        assert mine == plain["fused"], "losses differ from those of a run that is not parked"
        parameters = sum(p.numel() for p in Model().parameters())
        # Blocks of PyTorch's pool are larger than what is in them.
        assert max(paused) < parameters * 2 + parameters * STATE_BYTES // 4, f"{max(paused)} bytes were parked"
        note.detail = f"0 bits differ, {max(paused) / MiB:.0f} MiB parked, {parameters * STATE_BYTES / MiB:.0f} MiB of state streamed"
    with check(f"optim, parked from elsewhere {CYCLES} times") as note:
        library, left = ctypes.CDLL(None), []

        def park_from_elsewhere(number):  # which asks no optimizer, as `ebb pause` does not
            if number < CYCLES:
                library.tms_pause(None)
                left.append(ebb.status()["bytes_active"])
                moved = ebb.status()["last_pause"]
                assert moved["bytes"] > moved["host_bytes"] + moved["disk_bytes"], "slots were saved, or not paused"
                library.tms_resume(None)

        mine = losses(
            lambda p: ebb.optim.StreamedAdamW(p, lr=3e-4, fused=True, bucket_elements=10_000_000),
            STEPS, managed=True, between=park_from_elsewhere,
        )
        assert mine == plain["fused"], "losses differ from those of a run that is not parked"
        assert left == [0] * CYCLES, f"{left} bytes were left on the GPU"
        note.detail = "0 bits differ, no slot was left on the GPU"
    torch.use_deterministic_algorithms(False)


class Peak:
    """The most device memory in use, while `with` lasts, beyond what was in use before."""

    def __enter__(self):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._free, self.bytes, self._done = torch.cuda.mem_get_info()[0], 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._done.is_set():
            self._look()
            self._done.wait(0.002)

    def _look(self):
        self.bytes = max(self.bytes, self._free - torch.cuda.mem_get_info()[0])

    def __exit__(self, *_):
        self._look()
        self._done.set()
        self._thread.join()


def flat(elements, count):
    """That many bf16 parameters, and gradients for them."""
    made = [torch.nn.Parameter(torch.ones(elements // count, dtype=torch.bfloat16, device="cuda")) for _ in range(count)]
    for number, parameter in enumerate(made):
        generator = torch.Generator(device="cuda").manual_seed(number)
        parameter.grad = torch.randn(parameter.shape, generator=generator, device="cuda").bfloat16()
    return made


def memory():
    bucket = 8_000_000
    device, host = {}, {}
    for times in (1, 8):
        made = flat(4 * times * bucket, 4 * times)
        optimizer = ebb.optim.StreamedAdamW(made, fused=True, bucket_elements=bucket)
        optimizer.step()  # code is loaded, files are written
        optimizer.release()
        watch = HostMemory()
        with Peak() as peak, watch:
            optimizer.step()
        device[times], host[times] = peak.bytes, watch.peak
        optimizer.close()
        del made, optimizer
    slots = 3 * STATE_BYTES * bucket + 4 * bucket
    for times in device:
        figure(f"optim, GPU memory of a step, state x {times}", device[times] / 1e6, "MB")
        figure(f"optim, host memory of a step, state x {times}", host[times] / 1e6, "MB")
    with check("optim, memory while the state grows 8 times") as note:
        assert device[8] <= device[1] + SLACK, f"GPU memory grew from {device[1]} to {device[8]} bytes"
        assert device[8] <= slots + 4 * bucket + SLACK, f"{device[8]} bytes of GPU memory, slots are {slots}"
        assert host[8] <= host[1] + SLACK, f"host memory grew from {host[1]} to {host[8]} bytes"
        note.detail = f"{device[1] / 1e6:.0f} and {device[8] / 1e6:.0f} MB on the GPU"


def timed(call):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


class RawMixed:
    """Reads and writes as many bytes as a step does, at the same time."""

    def __init__(self, total, block, workers):
        sizes = [total // BUCKETS] * BUCKETS
        self._folder = tempfile.TemporaryDirectory(dir=DISK)
        places = [os.path.join(self._folder.name, way) for way in ("read", "write")]
        for place in places:
            os.mkdir(place)
        self._read = RawDisk(places[0], sizes, block, workers)
        try:
            self._write = RawDisk(places[1], sizes, block, workers)
        except BaseException:
            self._read.close()
            raise

    def run(self):
        writer = threading.Thread(target=self._write.write)
        writer.start()
        self._read.read()
        writer.join()

    def close(self):
        self._read.close()
        self._write.close()
        self._folder.cleanup()


def speed():
    made = flat(ELEMENTS, BUCKETS)
    optimizer = ebb.optim.StreamedAdamW(made, fused=True, bucket_elements=ELEMENTS // BUCKETS)
    optimizer.step()  # files are written once before they are measured
    moved = ELEMENTS * STATE_BYTES
    # As many bytes in flight in each direction as the state's lanes have.
    raw = RawMixed(moved, 4 * MiB, 16)
    masters = Masters(made[:1], fused=True)

    def update():
        for _ in range(BUCKETS):
            masters.step()

    update()
    rows = {name: [] for name in ("streamed", "serial", "raw mixed", "update", "to cap", "to serial", "hidden")}
    try:
        for _ in range(ROUNDS):
            optimizer.release()
            optimizer.buckets_in_flight = 3
            optimizer.prefetch()  # takes the slots
            optimizer.step()
            streamed = timed(optimizer.step)
            waited = optimizer.last.read_wait_seconds
            assert optimizer.last.read_bytes == optimizer.last.written_bytes >= moved
            rows["raw mixed"].append(timed(raw.run))
            rows["update"].append(timed(update))
            made[-1][:1].sum().backward()  # whose first gradient begins the reads
            time.sleep(streamed)  # a backward that is long enough; a wait for the time that passes, not for an event
            optimizer.step()
            rows["hidden"].append((1 - optimizer.last.read_wait_seconds / waited) / (3 / BUCKETS))
            optimizer.release()
            optimizer.buckets_in_flight = 1
            optimizer.step()
            serial = timed(optimizer.step)
            rows["streamed"].append(streamed)
            rows["serial"].append(serial)
            rows["to cap"].append(streamed / max(rows["raw mixed"][-1], rows["update"][-1]))
            rows["to serial"].append(serial / streamed)
    finally:
        raw.close()
        optimizer.close()
    for name, unit in (
        ("streamed", "s"), ("serial", "s"), ("raw mixed", "s"), ("update", "s"), ("to cap", "x (median of pairs; at most 1.15)"),
        ("to serial", "x (median of pairs; at least 1.3)"), ("hidden", "of the reads of 3 buckets behind backward (at least 0.7)"),
    ):
        figure(f"optim, {name}, {moved / 1e9:.1f} GB each way", statistics.median(rows[name]), unit)


def main():
    bits()
    memory()
    with check("optim, speed"):
        speed()
    finish()


if __name__ == "__main__":
    main()
