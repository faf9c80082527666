"""train.py --losses FILE [--steps N] [--park-every N] [--chunk-mb N]
         [--name NAME] [--end normal|exit-paused|exception|kill]

Trains a transformer with AdamW and writes every loss, exactly, to FILE. With --park-every the
process parks all its GPU memory after every N steps, and checks what the driver, the disk
directory and the host say. Without it this is plain PyTorch, run without ebb as the reference.
"""

import argparse
import os
import signal
import sys

import torch
from torch import nn

from gputest import *

WIDTH, LAYERS, HEADS, VOCABULARY, LENGTH, BATCH = 768, 8, 12, 8192, 256, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention_in, self.attention_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1), persistent=False)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.attention_in(self.norm1(x)).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5 + self.mask
        x = x + self.attention_out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm, self.head = nn.Sequential(*[Block() for _ in range(LAYERS)]), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions.weight)))


def train(arguments, park):
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    losses = []
    for step in range(arguments.steps):
        # A language that can be learnt: each token follows from the one before it.
        start = torch.randint(0, VOCABULARY, (BATCH, 1), device="cuda")
        tokens = (start + 17 * torch.arange(LENGTH + 1, device="cuda")) % VOCABULARY
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        if arguments.park_every and (step + 1) % arguments.park_every == 0:
            park.cycle()
    with open(arguments.losses, "w", encoding="ascii") as out:
        out.write("\n".join(losses) + "\n")


class Park:
    def __init__(self, arguments):
        self.name = arguments.name
        self.ebb, self.memory, self.chunk = Ebb(), HostMemory(), arguments.chunk_mb * MiB
        self.disk = os.environ.get("TMS_DISK_BACKUP_DIR") if os.environ.get("TMS_INIT_ENABLE_DISK_BACKUP") else None
        self.cycles, self.parked, self.files, self.faults = 0, 0, None, []

    def expect(self, condition, text):
        if not condition:
            self.faults.append(f"cycle {self.cycles}: {text}")

    def pause(self):
        before = torch.cuda.mem_get_info()[0]
        with self.memory:
            result = self.ebb.must_pause()
        risen = torch.cuda.mem_get_info()[0] - before
        self.parked = result.bytes
        # Every segment of PyTorch's allocator is ebb's, and all of it went back to the driver.
        self.expect(result.bytes >= torch.cuda.memory_reserved(), f"parked {result.bytes}, PyTorch holds {torch.cuda.memory_reserved()}")
        self.expect(risen >= result.device_bytes - DRIVER_OWN and result.device_bytes >= result.bytes, f"free memory rose by {risen}, parked {result.bytes}, released {result.device_bytes}")
        self.expect(self.ebb.status()["bytes_active"] == 0, "memory stayed active")
        if self.disk:
            files = backup_files(self.disk)
            self.expect(files, "no backup files")
            self.expect(sum(files.values()) >= result.bytes, f"{sum(files.values())} bytes of files for {result.bytes}")
            # Allocations come and go between pauses; those that stay keep their file.
            kept = {} if self.files is None else {name: size for name, size in self.files.items() if name in files}
            self.expect(all(files[name] == size for name, size in kept.items()), "a file changed its size")
            self.expect(self.files is None or kept, "no file was used again")
            self.expect(result.host_bytes == 0, f"{result.host_bytes} bytes went to host memory")
            self.files = files

    def cycle(self):
        self.pause()
        with self.memory:
            self.ebb.must_resume()
        self.cycles += 1

    def report(self):
        with check(f"{self.name}: memory really free in every cycle, files in place") as note:
            note.detail = f"{self.cycles} cycles, {self.parked / GiB:.2f} GiB parked"
            assert self.cycles > 0 and not self.faults, "; ".join(self.faults)
        if self.disk:
            with check(f"{self.name}: host memory within chunk + 64 MiB") as note:
                note.detail = f"grew by {self.memory.peak / MiB:.1f} MiB, chunk {self.chunk / MiB:.0f} MiB"
                assert self.memory.peak <= self.chunk + 64 * MiB, note.detail


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--losses", required=True)
    parser.add_argument("--name", default="reference")
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--park-every", type=int, default=0)
    parser.add_argument("--chunk-mb", type=int, default=256)
    parser.add_argument("--end", default="normal")
    arguments = parser.parse_args()
    park = Park(arguments) if arguments.park_every else None
    train(arguments, park)
    if not park:
        return
    park.report()
    if arguments.end != "normal":
        park.pause()
        print(f"paused with {len(backup_files(park.disk))} files", flush=True)
    if arguments.end == "exception":
        raise RuntimeError("this traceback is part of the test")
    if arguments.end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    finish()


if __name__ == "__main__":
    main()
