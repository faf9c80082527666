"""signals.py KIND: what a signal does in a Python process that has allocated, paused and resumed
(under ebb) or only allocated (without). Both must print and end alike."""

import ctypes
import faulthandler
import os
import signal
import sys
import threading

from gpu import *

kind = sys.argv[1]
if kind == "segv-before":
    faulthandler.enable()
if PRELOADED:
    ebb = Ebb()
    with ebb.region(backup="disk"):
        address = malloc(2 * MiB)
    ebb.must_pause()
    ebb.must_resume()
else:
    address = malloc(2 * MiB)

match kind:
    case "interrupt":
        try:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait()
        except KeyboardInterrupt:
            print("KeyboardInterrupt")
    case "interrupt-uncaught":
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait()
    case "alarm":
        seen = []
        signal.signal(signal.SIGALRM, lambda *_: seen.append("alarm"))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        while len(seen) < 20:
            signal.pause()
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("20 alarms")
    case "alarm-during":
        seen = []
        signal.signal(signal.SIGALRM, lambda *_: seen.append("alarm"))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        pattern = Pattern(1, 2 * MiB)
        pattern.write(address)
        while len(seen) < 50:
            if PRELOADED:
                ebb.must_pause()
                ebb.must_resume()
            pattern.check(address)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("interrupted often, content right")
    case "term":
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait()
    case "pipe":
        # Python ignores SIGPIPE and raises an error instead.
        reader, writer = os.pipe()
        os.close(reader)
        try:
            os.write(writer, b"x")
        except BrokenPipeError:
            print("BrokenPipeError")
    case "segv-before":
        ctypes.string_at(0)
    case "segv-after":
        faulthandler.enable()
        ctypes.string_at(0)
    case "segv-thread":
        faulthandler.enable()
        thread = threading.Thread(target=ctypes.string_at, args=(0,))
        thread.start()
        thread.join()
    case "segv-plain":
        ctypes.string_at(0)
    case "abort":
        os.abort()
