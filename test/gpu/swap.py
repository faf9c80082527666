"""swap.py [--soft]: `ebb swap` hands the GPU over between a training rank and a rollout engine.

The rank trains a few layers with AdamW in PyTorch under `ebb run`; the engine is a second process that
holds nearly all of the device and has vLLM's endpoints (test/e2e/testdata/engine_server.py). Both do not
fit together. Losses and a hash of all training state must be those of a run without ebb, and whoever
gets the memory must get all of it. One check keeps the engine's memory after it said that it sleeps:
the rank must not be resumed.

--soft runs the same with the software device, and with ranks that have no PyTorch: it shows that this
program works, not that PyTorch does. It needs LD_LIBRARY_PATH=dist/lib/softgpu.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
EBB = ROOT / "dist/bin/ebb"
E2E = ROOT / "test/e2e/testdata"
MiB, GiB = 1 << 20, 1 << 30
CYCLES, STEPS = 2, 3
# What the engine leaves free of the device: contexts, and what ebb and PyTorch load.
LEFT = 2 * GiB
LIMIT = 240  # seconds for any one wait
_failed = False


# ---- the rank --------------------------------------------------------------------------------


def train(address):
    """Trains when it is told to, and is idle otherwise."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    from gputest import PRELOADED, Ebb, fingerprint, torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)
    ebb = Ebb() if PRELOADED else None
    width = 8192  # 256 MiB a layer, four times with gradients and moments
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw = torch.Generator().manual_seed(2)

    def be_idle(begin):
        if ebb:
            code = ebb.lib.ebb_idle_begin() if begin else ebb.lib.ebb_idle_end()
            assert code == 0, ebb.error()

    def step():
        losses = []
        for _ in range(STEPS):
            batch = torch.randn(64, width, generator=draw).cuda()
            optimizer.zero_grad(set_to_none=False)
            loss = (model(batch) - batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        state = [p for p in model.parameters()] + [p.grad for p in model.parameters()]
        state += [optimizer.state[p][name] for p in model.parameters() for name in ("exp_avg", "exp_avg_sq")]
        total = 0
        for tensor in state:
            total = (total * 1099511628211 + fingerprint(tensor)) % (1 << 64)
        torch.cuda.synchronize()
        return f"{' '.join(losses)} {total:016x}"

    def where():
        status = ebb.status()
        return f"{status['bytes_active']} {status['bytes_paused']}"

    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rw", encoding="ascii") as driver:
        free, total = torch.cuda.mem_get_info()
        be_idle(True)
        print(f"{free} {total}", file=driver, flush=True)
        for line in driver:
            word = line.strip()
            if word == "quit":
                break
            if word == "where":
                answer = where()
            else:
                be_idle(False)
                answer = step()
                be_idle(True)
            print(answer, file=driver, flush=True)
        be_idle(False)


# ---- what the driver drives ------------------------------------------------------------------


class Rank:
    """A rank's process and the connection to it. `word` has it use all its memory, and say what came of it."""

    def __init__(self, soft, directory, prefix, environment):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(LIMIT)
        address = "127.0.0.1:%d" % listener.getsockname()[1]
        program = [str(E2E / "swap_rank.py"), address, "48"] if soft else [__file__, "--rank", address]
        self.log = open(directory / "rank.log", "ab")
        self.process = subprocess.Popen([*prefix, sys.executable, *program], env=environment, stdout=self.log, stderr=self.log)
        self.word = "check" if soft else "step"
        try:
            connection, _ = listener.accept()
            connection.settimeout(LIMIT)
            self.stream = connection.makefile("rw", encoding="ascii")
            self.hello = self.stream.readline().split()
        except BaseException:
            self.process.kill()
            raise
        finally:
            listener.close()

    def ask(self, word):
        print(word, file=self.stream, flush=True)
        answer = self.stream.readline().strip()
        assert answer, f"the rank ended when it was asked to {word}"
        return answer

    def use(self):
        return self.ask(self.word)

    def quit(self):
        print("quit", file=self.stream, flush=True)
        status = self.process.wait(LIMIT)
        self.log.close()
        assert status == 0, f"the ranks ended with status {status}"


class Server:
    """The engine's process."""

    def __init__(self, cudart, weights, cache, environment):
        command = [sys.executable, str(E2E / "engine_server.py"), "vllm", "--cudart", cudart,
                   "--weights-mib", str(weights // MiB), "--kv-cache-mib", str(cache // MiB)]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.held = weights // MiB * MiB + cache // MiB * MiB
        port = self.process.stdout.readline().strip()
        assert port, "the engine did not start"
        self.url = f"http://127.0.0.1:{port}"

    def request(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, method=method), timeout=LIMIT) as answer:
            return answer.read()

    def state(self):
        return json.loads(self.request("GET", "/_control"))

    def quit(self):
        self.process.stdin.close()
        self.process.wait(LIMIT)


def cudart():
    """The CUDA runtime that PyTorch loads."""
    script = "import torch; torch.cuda.init(); print(next(l.split()[-1] for l in open('/proc/self/maps') if 'libcudart.so' in l))"
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=LIMIT).stdout.strip()


# ---- checks ----------------------------------------------------------------------------------


def say(line):
    print(line, flush=True)
    if path := os.environ.get("GPUTEST_REPORT"):
        with open(path, "a", encoding="utf-8") as report:
            report.write(line + "\n")


@contextlib.contextmanager
def check(name):
    """The body is one check; what it puts into the list is told."""
    global _failed
    told = []
    try:
        yield told
    except Exception as err:  # a check that fails is reported, and the next one runs
        traceback.print_exc()
        _failed = True
        say(f"FAIL swap: {name}: {' '.join(f'{type(err).__name__}: {err}'.split())}")
    else:
        say(f"PASS swap: {name}" + "".join(f": {text}" for text in told))


def drive(soft, directory):
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith(("EBB_", "TMS_"))}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in ("test/gpu", "test/python", "test/e2e/testdata"))
    environment["EBB_RUNTIME_DIR"] = sockets = tempfile.mkdtemp(prefix="ebb-swap-")
    disk = directory / "disk"
    try:
        environment["RANK"] = "0"  # of the run without a launcher
        if soft:
            environment.update(SOFTGPU_NODE=directory.name, SOFTGPU_MEM_MB="160")
            runtime, weights, cache = "libcudart.so.13", 16 * MiB, 112 * MiB
            reference = ["intact"] * (CYCLES + 1)
        else:
            plain = Rank(soft, directory, [], environment)
            reference = [plain.use() for _ in range(CYCLES + 1)]
            free, held = int(plain.hello[0]), 4 * GiB  # what the rank took before it told
            plain.quit()
            runtime, weights = cudart(), 256 * MiB
            cache = free + held // 4 - LEFT - weights
        engine = Server(runtime, weights, cache, environment)
        engine.request("POST", "/sleep?level=1")
        prefix = [str(EBB), "run", "--nproc-per-node", "1", "--device", "soft" if soft else "cuda", "--job", "swap",
                  "--offload-train", "--offload-train-target", "disk", "--offload-train-disk-dir", str(disk), "--event-log", str(directory), "--"]
        rank = Rank(soft, directory, prefix, environment)
        hand_over(soft, rank, engine, reference, directory, disk, sockets, environment)
        rank.quit()
        engine.quit()
        with check("no backup file left"):
            left = [str(path) for path in disk.rglob("*.bak")]
            assert not left, left
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def hand_over(soft, rank, engine, reference, directory, disk, sockets, environment):
    def swap(to, *more, status=0):
        command = [str(EBB), "swap", "--to", to, "--engine", engine.url, "--runtime-dir", sockets, "--disk-dir", str(disk),
                   "--event-log", str(directory), *more]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
        print(result.stdout, result.stderr, sep="", flush=True)
        assert result.returncode == status, f"ebb swap --to {to}: status {result.returncode}: {result.stderr}"
        return result

    def paused():
        active, bytes_paused = rank.ask("where").split()
        assert active == "0" and int(bytes_paused) > 0, (active, bytes_paused)
        return int(bytes_paused)

    with check("before any hand-over"):
        assert rank.use() == reference[0]
    for cycle in range(1, CYCLES + 1):
        with check(f"cycle {cycle}, to rollout") as told:
            swap("rollout")
            parked, state = paused(), engine.state()
            assert state["held"] == engine.held and state["weights"] == "kept", state
            told.append(f"{parked / 1e9:.2f} GB parked, the engine holds {state['held'] / 1e9:.2f} GB")
        with check(f"cycle {cycle}, to rollout once more"):
            assert "nothing was moved" in swap("rollout").stdout
        if cycle == 1:
            with check("a reply before the memory is free") as told:
                engine.request("PUT", "/_control", {"hold": True})
                result = swap("train", "--timeout", "3", status=4)
                paused()
                now = re.search("ebb: now: (.*)", result.stderr).group(1)
                if not soft:
                    told.append(now)  # which processes the driver tells depends on the container
                assert not soft or f"process {engine.process.pid} (" in now, now
                assert "to go back: ebb swap --to rollout" in result.stderr, result.stderr
                engine.request("PUT", "/_control", {"hold": False})
        with check(f"cycle {cycle}, to train"):
            swap("train")
            assert engine.state()["held"] == 0, engine.state()
            got = rank.use()
            assert got == reference[cycle], f"{got} instead of {reference[cycle]}"
        with check(f"cycle {cycle}, to train once more"):
            assert "nothing was moved" in swap("train").stdout
    with check("event log"):
        lines = [json.loads(line) for line in (directory / "swap__swap.jsonl").read_text(encoding="utf-8").splitlines()]
        phases = [line["phase"] for line in lines if line["event"] == "phase" and not line.get("error")]
        assert phases.count("engine_wake") == CYCLES and phases.count("resume") == CYCLES, phases


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--soft", action="store_true")
    parser.add_argument("--rank", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return train(options.rank)
    base = pathlib.Path(os.environ.get("GPUTEST_DISK") or ROOT / "build")
    base.mkdir(parents=True, exist_ok=True)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="swap-", dir=base.resolve()))
    try:
        with check("all of it"):
            drive(options.soft, directory)
        if _failed:
            print((directory / "rank.log").read_text(errors="replace")[-4000:], flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if _failed else 0


if __name__ == "__main__":
    sys.exit(main())
