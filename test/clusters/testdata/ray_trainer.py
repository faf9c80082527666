"""The training actors of the Ray tests: a small language model on each rank, data parallel, whose parameters,
moments and a large block beside them lie in the memory of the software GPU. A step is a gradient on every rank, their
mean, and an update on every rank. All of it in exact order, so that two runs have the same losses bit for bit."""

import asyncio
import math
import os
import random
import struct

import ebb.ray

LETTERS = 27
SIZE = LETTERS * LETTERS
BALLAST = 12 << 20


class Model:
    """Bigrams: the logits of the next letter for each letter, trained with momentum."""

    def __init__(self, rank):
        import gpu  # the CUDA runtime is loaded where the memory is

        self.gpu, self.rank = gpu, rank
        self.places = [gpu.malloc(4 * SIZE), gpu.malloc(4 * SIZE)]  # parameters, momentum
        self.load(struct.pack(f"{SIZE}f", *[0.0] * SIZE) * 2)
        self.ballast = gpu.malloc(BALLAST)
        self.pattern = gpu.Pattern(f"rank {rank}", BALLAST)
        self.pattern.write(self.ballast)

    def get(self, which):
        return list(struct.unpack(f"{SIZE}f", self.gpu.read(self.places[which], 4 * SIZE)))

    def put(self, which, values):
        self.gpu.write(self.places[which], struct.pack(f"{SIZE}f", *values))

    def dump(self):
        return b"".join(self.gpu.read(place, 4 * SIZE) for place in self.places)

    def load(self, state):
        for which, place in enumerate(self.places):
            self.gpu.write(place, state[which * 4 * SIZE:(which + 1) * 4 * SIZE])

    def gradient(self, step):
        """(loss, gradient) on this rank's words of the step."""
        weights, gradient, loss = self.get(0), [0.0] * SIZE, 0.0
        choose = random.Random(f"{step} {self.rank}")
        pairs = [(a := choose.randrange(LETTERS), (a * 7 + choose.randrange(3)) % LETTERS) for _ in range(24)]
        for now, following in pairs:
            row = [math.exp(w) for w in weights[now * LETTERS:(now + 1) * LETTERS]]
            total = sum(row)
            loss -= math.log(row[following] / total)
            for letter in range(LETTERS):
                gradient[now * LETTERS + letter] += (row[letter] / total - (letter == following)) / len(pairs)
        return loss / len(pairs), gradient

    def update(self, gradient):
        momentum = [0.9 * m + g for m, g in zip(self.get(1), gradient)]
        self.put(1, momentum)
        self.put(0, [w - 2.0 * m for w, m in zip(self.get(0), self.get(1))])

    def check(self):
        self.pattern.check(self.ballast)


class Stepping(Model):
    """That of the page's example."""

    def step(self, number):
        loss, gradient = self.gradient(number)
        self.update(gradient)
        return loss


class Trainer(ebb.ray.Parkable):
    """Sync: Ray runs its calls one after the other."""

    def __init__(self, rank):
        self.model = Model(rank)

    def gradient(self, step):
        return self.model.gradient(step)

    def update(self, gradient):
        self.model.update(gradient)

    def dump(self):
        return self.model.dump()

    def load(self, state):
        self.model.load(state)

    def check(self):
        self.model.check()

    def variables(self):
        return dict(os.environ)

    def who(self):
        """(pid, pid of the parent)"""
        return os.getpid(), os.getppid()

    def busy_until(self, path):
        """A step that takes until a file is there."""
        import time

        while not os.path.exists(path):
            time.sleep(0.01)


class Lazy(ebb.ray.Parkable):
    """Has no memory: it only tells whether ebb is there."""

    def variables(self):
        return dict(os.environ)

    def pause_fails(self):
        try:
            ebb.pause()
        except ebb.Error as err:
            return type(err).__name__, str(err)


class AsyncTrainer(ebb.ray.AsyncParkable):
    """Async: several calls are under way at a time."""

    def __init__(self, rank):
        self.model = Model(rank)
        self.steps = 0
        self.training = None

    async def train(self, path):
        """Steps until a file is there, each with the memory for itself."""
        while not os.path.exists(path):
            async with self.ebb_resting():
                self.model.update(self.model.gradient(self.steps)[1])
                self.steps += 1
                await asyncio.sleep(0.01)  # others run in the midst of a step
                self.model.check()
        return self.steps

    async def begin(self, path):
        self.training = asyncio.ensure_future(self.train(path))

    async def count(self):
        return self.steps

    async def end(self):
        return await self.training


class Plain:
    """Knows nothing of ebb."""

    def hello(self):
        return "hello"
