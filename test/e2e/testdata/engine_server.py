"""engine_server.py: a rollout engine as seen from outside: an HTTP server that holds device memory.

It has the endpoints of vLLM's or SGLang's servers, with their status codes and bodies, and holds memory
on the device for the tags "weights" and "kv_cache". What is asleep is really freed; the weights come
back with their content (level 1) or as zeros (level 2). SGLang's server ends when memory is released
twice or resumed without a release, as its scheduler does, and so does this one.

It prints its port, and ends when standard input does. Standard library only.

Beside the engine's endpoints it has one for the tests, /_control: GET says what it is and which calls
came, PUT changes its manners, for example {"faults": {"/sleep": {"status": 500, "body": "no"}}}. A
fault has "status" with "body" and "location", or "hang", or "break" (the connection ends without an
answer), and may come "after" the work was done. "hold" keeps the memory when it is put to sleep: the
server replies, and says that it sleeps, but frees only when "hold" is taken back. "wake_fails" stays
asleep after it said that it is awake.
"""

import argparse
import ctypes
import http.server
import json
import os
import random
import sys
import threading
import urllib.parse

MiB = 1 << 20
H2D, D2H = 1, 2
TAGS = ("weights", "kv_cache")


class Device:
    """Device memory through the CUDA runtime, from any thread."""

    def __init__(self, path):
        lib = self.lib = ctypes.CDLL(path)
        lib.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
        lib.cudaFree.argtypes = [ctypes.c_void_p]
        lib.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._check("cudaFree", lib.cudaFree(None))

    @staticmethod
    def _check(call, code):
        if code != 0:
            raise MemoryError(f"CUDA out of memory: {call}: {code}" if code == 2 else f"{call}: {code}")

    def malloc(self, size):
        pointer = ctypes.c_void_p()
        self._check("cudaMalloc", self.lib.cudaMalloc(ctypes.byref(pointer), size))
        return pointer.value

    def free(self, address):
        self._check("cudaFree", self.lib.cudaFree(address))

    def write(self, address, data):
        self._check("cudaMemcpy", self.lib.cudaMemcpy(address, data, len(data), H2D))

    def read(self, address, size):
        buffer = ctypes.create_string_buffer(size)
        self._check("cudaMemcpy", self.lib.cudaMemcpy(ctypes.addressof(buffer), address, size, D2H))
        return buffer.raw


class Engine:
    """The memory. Callers hold the lock."""

    def __init__(self, device, sizes):
        self.lock = threading.RLock()
        self.device, self.sizes = device, sizes
        self.address = {}  # tag: where it is, if it is
        self.asleep = set()  # tags, as the server says
        self.content = random.Random(1).randbytes(MiB)
        self.saved = self.content  # of the weights, while they sleep
        for tag in TAGS:
            self.take(tag)
        self._fill()

    def take(self, tag):
        if tag not in self.address:
            self.address[tag] = self.device.malloc(self.sizes[tag])

    def _fill(self):
        self.device.write(self.address["weights"], self.saved)

    def release(self, tags, keep=True, hold=False):
        for tag in tags:
            if tag == "weights" and tag in self.address:
                self.saved = self.device.read(self.address[tag], MiB) if keep else bytes(MiB)
            self.asleep.add(tag)
        if not hold:
            self.settle()

    def settle(self):
        """Frees what sleeps."""
        for tag in self.asleep & self.address.keys():
            self.device.free(self.address.pop(tag))

    def resume(self, tags):
        taken = []
        try:
            for tag in tags:
                if tag not in self.address:
                    self.take(tag)
                    taken.append(tag)
        except MemoryError:
            for tag in taken:
                self.device.free(self.address.pop(tag))
            raise
        if "weights" in taken:
            self._fill()
        self.asleep -= set(tags)

    def held(self):
        return sum(self.sizes[tag] for tag in self.address)

    def weights(self):
        """What the weights hold: "kept", "gone", or None where they are not on the device."""
        if "weights" not in self.address:
            return None
        return "kept" if self.device.read(self.address["weights"], MiB) == self.content else "gone"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._any()

    def do_POST(self):
        self._any()

    def do_PUT(self):
        self._any()

    def _any(self):
        server = self.server
        url = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if url.path == "/_control":
            return self._control(body)
        server.calls.append(f"{self.command} {self.path} {body.decode()}".strip())
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            return self.answer(401, {"error": "Unauthorized"})
        fault = server.faults.get(url.path)
        if fault and not fault.get("after"):
            return self._fail(fault)
        route = ROUTES[server.kind].get((self.command, url.path))
        if route is None:
            return self.answer(404, {"detail": "Not Found"})
        status, reply = 200, None
        with server.engine.lock:
            try:
                reply = route(server, urllib.parse.parse_qs(url.query), json.loads(body) if body else {})
            except MemoryError as err:
                status, reply = 500 if server.kind == "vllm" else 400, {"error": {"message": str(err)}}
            except ValueError as err:
                status, reply = 400, {"error": {"message": str(err)}}
        if fault:
            return self._fail(fault)
        return self.answer(status, reply)

    def _control(self, body):
        server = self.server
        with server.engine.lock:
            if self.command == "PUT":
                manners = json.loads(body)
                server.faults = manners.get("faults", server.faults)
                server.hold = manners.get("hold", server.hold)
                server.wake_fails = manners.get("wake_fails", server.wake_fails)
                if not server.hold:
                    server.engine.settle()
            engine = server.engine
            state = {"calls": list(server.calls), "asleep": sorted(engine.asleep), "held": engine.held(),
                     "weights": engine.weights(), "paused": server.paused, "pid": os.getpid()}
        self.answer(200, state)

    def _fail(self, fault):
        if fault.get("hang"):
            self.server.ended.wait()
        if fault.get("hang") or fault.get("break"):
            self.close_connection = True
            return None
        text = fault.get("body", "")
        return self.answer(fault["status"], "x" * text if isinstance(text, int) else text, fault.get("location"))

    def answer(self, status, reply, location=None):
        text = b"" if reply is None else reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        try:
            self.wfile.write(text)
        except OSError:
            self.close_connection = True  # nobody reads it


# ---- vLLM ------------------------------------------------------------------------------------


def vllm_sleep(server, query, _):
    if not server.engine.asleep:
        server.engine.release(TAGS, keep=query.get("level", ["1"])[0] == "1", hold=server.hold)


def vllm_wake(server, query, _):
    if not server.wake_fails:
        server.engine.resume([tag for tag in query.get("tags", TAGS) if tag in server.engine.asleep])


VLLM = {
    ("GET", "/version"): lambda *_: {"version": "0.14.0"},
    ("POST", "/sleep"): vllm_sleep,
    ("POST", "/wake_up"): vllm_wake,
    ("GET", "/is_sleeping"): lambda server, *_: {"is_sleeping": bool(server.engine.asleep)},
}


# ---- SGLang ----------------------------------------------------------------------------------


def die(why):
    """As a scheduler that meets an assertion takes its server with it."""
    print(f"engine_server: the scheduler ended: {why}", file=sys.stderr, flush=True)
    os._exit(1)


def sglang_release(server, _, body):
    tags = body.get("tags") or TAGS
    if set(tags) & server.engine.asleep:
        die(f"release of {tags}, of which {sorted(server.engine.asleep)} is released")
    server.engine.release(tags, hold=server.hold)


def sglang_resume(server, _, body):
    tags = body.get("tags") or TAGS
    tags = [tag for tag in tags if tag != "cuda_graph"]  # it holds none here
    if not set(tags) <= server.engine.asleep:
        die(f"KeyError: resume of {tags}, of which only {sorted(server.engine.asleep)} is released")
    server.engine.resume(tags)


def sglang_pause(server, _, body):
    if body.get("mode", "abort") not in ("abort", "retract", "in_place"):
        raise ValueError("unknown mode")
    server.paused = True
    return {"message": "Generation paused successfully.", "status": "ok"}


def sglang_continue(server, *_):
    server.paused = False
    return {"message": "Generation continued successfully.", "status": "ok"}


SGLANG = {
    ("GET", "/get_model_info"): lambda *_: {"model_path": "small", "is_generation": True},
    ("GET", "/get_server_info"): lambda server, *_: {"enable_memory_saver": server.memory_saver, "random_seed": server.seed, "version": "0.5.5"},
    ("POST", "/release_memory_occupation"): sglang_release,
    ("POST", "/resume_memory_occupation"): sglang_resume,
    ("POST", "/pause_generation"): sglang_pause,
    ("POST", "/continue_generation"): sglang_continue,
}


ROUTES = {"vllm": VLLM, "sglang": SGLANG, "none": {}}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, options, engine):
        self.kind, self.token, self.engine = options.kind, options.token, engine
        self.memory_saver = not options.no_memory_saver
        self.seed = random.SystemRandom().randrange(1 << 30)  # of this start
        self.calls, self.faults, self.hold, self.wake_fails, self.paused = [], {}, False, False, False
        self.ended = threading.Event()
        super().__init__(("127.0.0.1", options.port), Handler)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["vllm", "sglang", "none"])
    parser.add_argument("--cudart", default="libcudart.so.13", help="the CUDA runtime")
    parser.add_argument("--weights-mib", type=int, default=32)
    parser.add_argument("--kv-cache-mib", type=int, default=96)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", default="")
    parser.add_argument("--no-memory-saver", action="store_true")
    options = parser.parse_args()
    engine = Engine(Device(options.cudart), {"weights": options.weights_mib * MiB, "kv_cache": options.kv_cache_mib * MiB})
    server = Server(options, engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    server.ended.set()
    server.shutdown()


if __name__ == "__main__":
    main()
