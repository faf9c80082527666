"""What the tests of streamed optimizers have in common: parameters, and PyTorch's optimizer beside the streamed one.
Needs PyTorch (make test-python finds an interpreter that has it, or says that none has)."""

import os
import tempfile
import time
import unittest

from support import DISK, Memory

try:
    import torch
except ImportError:
    torch = None
else:
    import ebb.optim
    from ebb.optim import StreamedAdamW

FP32, BF16, FP16 = (getattr(torch, name, None) for name in ("float32", "bfloat16", "float16"))

# (shape, type), and how the parameter lies in memory. With buckets of so few elements some are divided.
SHAPES = [
    ((3,), FP32), ((40, 30), FP32), ((17,), BF16), ((33, 31), BF16), ((), FP32), ((64, 8), FP16), ((5, 7), FP32),
    ((0, 4), FP32), ((24, 9), BF16), ((6, 5), FP32),
]
BUCKET = 1024
# PyTorch has fused functions for the CPU from 2.4 on. They take no account of holes in a parameter.
HAS_FUSED = torch is not None and int(torch.__version__.split(".")[0]) >= 2
FLAVOUR = {"fused": True} if HAS_FUSED else {"foreach": True}
TRANSPOSED, WITH_HOLES = (6, 8), () if HAS_FUSED else (9,)


def parameters(seed=0):
    torch.manual_seed(seed)
    made = []
    for i, (shape, kind) in enumerate(SHAPES):
        if i in TRANSPOSED:
            value = torch.randn(shape[::-1]).to(kind).t()
        elif i in WITH_HOLES:
            value = torch.randn(shape[0], 2 * shape[1]).to(kind)[:, ::2]
        else:
            value = torch.randn(shape).to(kind)
        made.append(torch.nn.Parameter(value))
    return made


def groups(made):
    return [
        {"params": made[:4]},
        {"params": made[4:], "lr": 3e-3, "weight_decay": 0.2},
    ]


def loss_of(made, number, without=()):
    generator = torch.Generator().manual_seed(number)
    total = torch.zeros(())
    for i, parameter in enumerate(made):
        target = torch.randn(parameter.shape, generator=generator)
        if i not in without:
            total = total + (parameter.float() - target).pow(2).sum()
    return total


def bits(tensor):
    return tensor.detach().cpu().contiguous().reshape(-1).view({4: torch.int32, 2: torch.int16}[tensor.element_size()])


def files_are_closed():
    """Waits until the engine has closed its files, which it does when nothing is asked of it: one that is open is read,
    whatever becomes of its name."""
    def any_open():
        return any(os.path.realpath(f"/proc/self/fd/{fd}").endswith(".bak") for fd in os.listdir("/proc/self/fd"))

    while any_open():
        time.sleep(0.001)


class Plain:
    """Parameters that PyTorch's optimizer updates through fp32 masters."""

    def __init__(self, made, kind, **options):
        self.parameters = made
        self.masters = [torch.nn.Parameter(p.detach().float()) if p.dtype != FP32 else p for p in made]
        self.optimizer = kind(groups(self.masters), **options)

    def step(self):
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters):
                if parameter is not master:
                    master.grad = None if parameter.grad is None else parameter.grad.float()
            self.optimizer.step()
            for parameter, master in zip(self.parameters, self.masters):
                if parameter is not master:
                    parameter.copy_(master)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None


@unittest.skipIf(torch is None, "PyTorch is not installed for this interpreter")
class Streamed(Memory):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(dir=DISK)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def streamed(self, made, kind=None, **options):
        options.setdefault("bucket_elements", BUCKET)
        optimizer = (kind or StreamedAdamW)(groups(made) if len(made) == len(SHAPES) else made, **options)
        self.addCleanup(optimizer.close)
        return optimizer

    def train(self, plain, made, optimizer, steps, first=0, without=lambda number: ()):
        """The same steps with both, whose losses are the same."""
        for number in range(first, first + steps):
            plain.zero_grad()
            optimizer.zero_grad(set_to_none=True)
            losses = []
            for side in (plain.parameters, made):
                loss = loss_of(side, number, without(number))
                loss.backward()
                losses.append(loss)
            self.same(*losses)
            plain.step()
            optimizer.step()

    def same(self, a, b, what="loss"):
        self.assertEqual(a.shape, b.shape)
        self.assertTrue(torch.equal(bits(a), bits(b)), f"{what} differs: {a} {b}")

    def all_same(self, plain, made):
        for i, (a, b) in enumerate(zip(plain.parameters, made)):
            self.same(a, b, f"parameter {i}")
