"""Run by ebb doctor: says in one line of JSON what this interpreter has. Imports neither PyTorch nor
torch_memory_saver.

Arguments: the paths of libebb.so and of libebb-engine.so.
"""

import ctypes
import json
import sys
from importlib import metadata


def version_of(library, function):
    try:
        call = getattr(ctypes.CDLL(library), function)
        call.restype = ctypes.c_char_p
        return {"version": call().decode()}
    except (OSError, AttributeError) as err:
        return {"error": str(err)}


def installed(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


print(
    "\nebb-doctor "
    + json.dumps(
        {
            "python": sys.version.split()[0],
            "executable": sys.executable,
            "torch": installed("torch"),
            "torch_memory_saver": installed("torch_memory_saver"),
            "ebb": installed("ebb"),
            "library": version_of(sys.argv[1], "ebb_version"),
            "engine": version_of(sys.argv[2], "ebb_engine_version"),
        }
    )
)
