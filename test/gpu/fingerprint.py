"""fingerprint.py [--ptx FILE] [--figures]: the fingerprint kernel on this machine's GPU. It must compute what the
same hash computes in C, on random blocks of all lengths, in device memory and in pinned memory; that
one runs through the same driver calls on softgpu (dist/lib/softgpu), which has it under the kernel's name. A few
short blocks are also compared with the definition, written once more below. --figures measures it
beside copies of the same bytes.

Standard library only: PyTorch is not needed.
"""

import argparse
import ctypes
import os
import pathlib
import random
import statistics
import struct
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOFTGPU = ROOT / "dist/lib/softgpu/libcuda.so.1"
PTX = ROOT / "internal/device/cuda/fingerprint.ptx"

MiB, GiB = 1 << 20, 1 << 30
CHUNK, COLUMNS, ROWS, LANES = 16, 256, 64, 4
ROW, TILE = COLUMNS * CHUNK, COLUMNS * CHUNK * ROWS
PRIME = (1 << 61) - 1

failures = 0


def say(line):
    print(line, flush=True)
    if path := os.environ.get("GPUTEST_REPORT"):
        with open(path, "a", encoding="utf-8") as report:
            report.write(line + "\n")


def check(name, wrong):
    """wrong is a list of what was not as it must be."""
    global failures
    if wrong:
        failures += 1
        say(f"FAIL fingerprint, {name}: {len(wrong)} wrong, first: {wrong[0]}")
    else:
        say(f"PASS fingerprint, {name}")


def figure(name, value, unit):
    say(f"FIGURE fingerprint, {name}: {value:.3f} {unit}")


class Key:
    """A key, and the struct ebb_fp_key that it is in memory."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.words = [draw.getrandbits(32) for _ in range(ROWS * 4 + 2 * LANES - 2)]
        self.x = [draw.randrange(PRIME) for _ in range(2)]
        self.y = [draw.randrange(PRIME) for _ in range(2)]
        powers = [pow(x, 1 << k, PRIME) for x in self.x for k in range(7)]
        self.image = struct.pack("<262I14Q2Q", *self.words, *powers, *self.y)

    def fold(self, parts, n):
        """Joins the parts (p0, p1, any) of a block of n bytes."""
        total = [n, n]
        for part in parts:
            total = [(total[q] * self.y[q] + part[q]) % PRIME for q in range(2)]
        return (*total, any(part[2] for part in parts))

    def of(self, block):
        """The definition."""
        parts = []
        for at in range(0, len(block), TILE):
            tile = block[at : at + TILE]
            rows = -(-len(tile) // ROW)
            words = struct.unpack(f"<{rows * ROW // 4}I", tile.ljust(rows * ROW, b"\0"))
            part = [0, 0, any(tile)]
            for column in reversed(range(COLUMNS)):
                for lane in reversed(range(LANES)):
                    nh = 0
                    for row in range(rows):
                        for i in (0, 2):
                            m, k = row * ROW // 4 + column * 4 + i, row * 4 + 2 * lane + i
                            nh += (words[m] + self.words[k] & 0xFFFFFFFF) * (words[m + 1] + self.words[k + 1] & 0xFFFFFFFF)
                    q = lane // 2
                    part[q] = (part[q] * self.x[q] + nh % (1 << 64)) % PRIME
            parts.append(part)
        return self.fold(parts, len(block))


class Driver:
    """A driver library with the kernel loaded, on device 0."""

    def __init__(self, library, ptx, key):
        self.lib, self.key = ctypes.CDLL(str(library)), key
        self("cuInit", 0)
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.kernel = ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        name = ctypes.create_string_buffer(128)
        self("cuDeviceGetName", name, 128, device)
        self.name = name.value.decode()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        begin = time.perf_counter()
        self("cuModuleLoadData", ctypes.byref(module), ptx.read_bytes() + b"\0")
        self.load_seconds = time.perf_counter() - begin
        self("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"ebb_fingerprint")
        self.scratch_tiles = 0
        self.image = ctypes.create_string_buffer(key.image, len(key.image))

    def __call__(self, name, *args):
        if code := getattr(self.lib, name)(*args):
            raise RuntimeError(f"{name} on {self.lib._name} failed: {code}")

    def device_memory(self, n):
        p = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(n))
        return p.value

    def free(self, address):
        self("cuMemFree_v2", ctypes.c_uint64(address))

    def pinned(self, n):
        """Pinned memory and its address for kernels."""
        p, address = ctypes.c_void_p(), ctypes.c_uint64()
        self("cuMemHostAlloc", ctypes.byref(p), ctypes.c_size_t(n), 1)
        self("cuMemHostGetDevicePointer_v2", ctypes.byref(address), p, 0)
        return (ctypes.c_ubyte * n).from_address(p.value), address.value

    def upload(self, address, host):
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(address), host, ctypes.c_size_t(ctypes.sizeof(host)))

    def stream(self):
        s = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(s), 1)
        return s

    def describe(self, spans, move=None):
        """Writes the tiles of (address, bytes) spans; their number. If the kernel shall copy, move is by how much."""
        tiles = [(a + at, 0 if move is None else a + at + move, min(n - at, TILE), 0) for a, n in spans for at in range(0, n, TILE)]
        if len(tiles) > self.scratch_tiles:
            self.scratch_tiles = len(tiles)
            self.tiles = self.pinned(32 * len(tiles))
            self.parts = self.pinned(32 * len(tiles))
        struct.pack_into(f"<{4 * len(tiles)}Q", self.tiles[0], 0, *(v for tile in tiles for v in tile))
        return len(tiles)

    def launch(self, tiles, stream=None):
        addresses = [ctypes.c_uint64(self.tiles[1]), ctypes.c_uint64(self.parts[1])]
        params = (ctypes.c_void_p * 3)(ctypes.addressof(self.image), *map(ctypes.addressof, addresses))
        self("cuLaunchKernel", self.kernel, tiles, 1, 1, COLUMNS, 1, 1, 0, stream, params, None)

    def sums(self, spans, move=None):
        """Hashes, and copies, in one launch."""
        tiles = self.describe(spans, move)
        ctypes.memset(self.parts[0], 0xEE, 32 * tiles)
        self.launch(tiles)
        self("cuCtxSynchronize")
        parts = [struct.unpack_from("<3Q", self.parts[0], 32 * i) for i in range(tiles)]
        sums, at = [], 0
        for _, n in spans:
            count = -(-n // TILE)
            sums.append(self.key.fold(parts[at : at + count], n))
            at += count
        return sums


LENGTHS = [1, 7, 15, 16, 17, 511, 512, 4095, 4096, 4097, 8 * ROW - 1, 8 * ROW, 8 * ROW + 1, TILE - ROW, TILE - 1, TILE, TILE + 1]
LENGTHS += [3 * TILE - 17, MiB + 12345, 4 * MiB - 1, 4 * MiB, 4 * MiB + 1, 8 * MiB, 64 * MiB]


def compare(gpu, soft, key, draw):
    room = 96 * MiB
    there = [(d, *d.pinned(room), d.device_memory(room)) for d in (gpu, soft)]
    data = draw.randbytes(room)
    for d, host, _, device in there:
        ctypes.memmove(host, data, room)
        d.upload(device, host)

    def same(name, blocks):
        results = {}
        for d, _, pinned, device in there:
            for kind, base in (("device", device), ("pinned", pinned)):
                results[d is gpu, kind] = d.sums([(base + at, n) for at, n in blocks])
        want = results[False, "device"]
        for (on_gpu, kind), got in results.items():
            if on_gpu:
                check(f"{name}, {kind} memory", [b for b, x, y in zip(blocks, got, want) if x != y])

    same("every length", [(draw.randrange((room - n) // 16) * 16, n) for n in LENGTHS])
    same("500 random blocks in one launch", [(draw.randrange((room - 8 * MiB) // 16) * 16, draw.randrange(1, 8 * MiB)) for _ in range(500)])
    same("20000 short blocks in one launch", [(16 * i, draw.randrange(1, 3000)) for i in range(20000)])

    short = [1, 17, 4097, 2 * ROW, 9 * ROW + 5, TILE + 100]
    got = gpu.sums([(there[0][3] + 16, n) for n in short])
    check("the definition", [n for n, sum in zip(short, got) if sum != key.of(data[16 : 16 + n])])

    # Copies, to pinned memory: nothing but the block is written, and the hash is the same.
    _, host, pinned, device = there[0]
    wrong, at = [], 32
    blocks = []
    for n in LENGTHS[:-1]:
        blocks.append((at, n))
        at += (n + 15) // 16 * 16 + 16
    ctypes.memset(host, 0xEE, room)
    moved = gpu.sums([(device + at, n) for at, n in blocks], pinned - device)
    want = bytearray(b"\xee" * room)
    for at, n in blocks:
        want[at : at + n] = data[at : at + n]
    if bytes(host) != bytes(want):
        wrong.append("the bytes")
    wrong += [b for b, x, y in zip(blocks, moved, gpu.sums([(device + at, n) for at, n in blocks])) if x != y]
    check("copies", wrong)

    # Zeros, but for what lies behind them; then one bit in each.
    wrong = []
    for n in LENGTHS[:-1]:
        ctypes.memset(host, 0xFF, n + ROW)
        ctypes.memset(host, 0, n)
        zeros = gpu.sums([(pinned, n)])[0]
        if zeros[2]:
            wrong.append(f"{n} zeros are not")
        for at in (0, n - 1, draw.randrange(n)):
            host[at] = 1 << draw.randrange(8)
            bit = gpu.sums([(pinned, n)])[0]
            if not bit[2] or bit[:2] == zeros[:2]:
                wrong.append(f"{n} bytes, one bit in byte {at} set: not found")
            host[at] = 0
    check("zero blocks", wrong)
    for d, _, _, device in there:
        d.free(device)


class Timer:
    def __init__(self, d):
        self.d, self.events = d, [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self.events:
            d("cuEventCreate", ctypes.byref(event), 0)

    def __call__(self, work, stream=None):
        """Seconds that the work, queued on the stream, takes on the device."""
        self.d("cuEventRecord", self.events[0], stream)
        work()
        self.d("cuEventRecord", self.events[1], stream)
        self.d("cuEventSynchronize", self.events[1])
        ms = ctypes.c_float()
        self.d("cuEventElapsedTime", ctypes.byref(ms), *self.events)
        return ms.value / 1e3


def figures(gpu):
    figure("kernel loaded", gpu.load_seconds * 1e3, "ms")
    timer = Timer(gpu)
    size = 8 * GiB
    memory = gpu.device_memory(2 * size)
    gpu("cuMemsetD32_v2", ctypes.c_uint64(memory), 0x12345678, ctypes.c_size_t(2 * size // 4))

    # The hash of all of it beside a copy of one half to the other, which reads and writes as many bytes.
    tiles = gpu.describe([(memory, 2 * size)])
    copy = lambda: gpu("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(memory), ctypes.c_uint64(memory + size), ctypes.c_size_t(size), None)
    for _ in range(2):
        timer(copy), timer(lambda: gpu.launch(tiles))
    rounds = [(timer(copy), timer(lambda: gpu.launch(tiles))) for _ in range(11)]
    figure("copy on the device, read and written", statistics.median(2 * size / c for c, _ in rounds) / 1e12, "TB/s")
    figure("hash of device memory", statistics.median(2 * size / h for _, h in rounds) / 1e12, "TB/s")
    figure("hash / copy on the device", statistics.median(c / h for c, h in rounds), "")
    for n in (512, 64 << 10, 4 * MiB, 64 * MiB):
        count = gpu.describe([(memory, n)])
        figure(f"one block of {n} bytes", statistics.median(timer(lambda: gpu.launch(count)) for _ in range(21)) * 1e6, "us")

    # Blocks on their way to pinned memory: copied by the driver, copied and hashed by the kernel, hashed when they are there.
    n = 1 * GiB
    host, address = gpu.pinned(n)
    ctypes.memset(host, 7, n)
    driver = lambda: gpu("cuMemcpyDtoHAsync_v2", host, ctypes.c_uint64(memory), ctypes.c_size_t(n), None)
    rates = {name: [] for name in ("copy to pinned memory", "copy to pinned memory, hashed on the way", "hash of pinned memory")}
    for _ in range(5):
        rates["copy to pinned memory"].append(timer(driver))
        count = gpu.describe([(memory, n)], address - memory)
        rates["copy to pinned memory, hashed on the way"].append(timer(lambda: gpu.launch(count)))
        count = gpu.describe([(address, n)])
        rates["hash of pinned memory"].append(timer(lambda: gpu.launch(count)))
    for name, seconds in rates.items():
        figure(name, n / statistics.median(seconds) / 1e9, "GB/s")
    gpu.free(memory)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", default="libcuda.so.1", help="driver library")
    parser.add_argument("--ptx", type=pathlib.Path, default=PTX)
    parser.add_argument("--figures", action="store_true")
    options = parser.parse_args()
    seed = int(os.environ.get("EBB_TEST_SEED", time.time_ns()))
    print(f"seed {seed} (EBB_TEST_SEED repeats it)")
    key = Key(seed)
    gpu = Driver(options.driver, options.ptx, key)
    print(f"on {gpu.name}")
    compare(gpu, Driver(SOFTGPU, options.ptx, key), key, random.Random(seed))
    if options.figures:
        figures(gpu)
    sys.exit(1 if failures else 0)


main()
