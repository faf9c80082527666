"""Run by ebb adopt in the interpreter that it is given: says in one line of JSON where that
interpreter finds torch_memory_saver. Imports neither that package nor PyTorch.

Arguments: the name of ebb's manifest, and the path of libebb.so or nothing.
"""

import importlib.util
import json
import os
import sys

# A folder of that name where ebb happens to be called is not what programs import.
sys.path = [entry for entry in sys.path if entry]

found = {
    "version": "",
    "origin": "",
    "prefix": sys.prefix,
    "executable": sys.executable,
    "owned": [],
    "remains": [entry for entry in sys.path if os.path.lexists(os.path.join(entry, sys.argv[1]))],
    "load": "",
    "load_error": "",
}

spec = importlib.util.find_spec("torch_memory_saver")
if spec is not None and spec.has_location:
    found["origin"] = os.path.abspath(spec.origin)

try:
    from importlib import metadata

    installed = metadata.distribution("torch_memory_saver")
    found["version"] = installed.version
    found["owned"] = [os.path.abspath(str(installed.locate_file(name))) for name in installed.files or () if str(name).endswith(".so")]
except Exception:  # copied into place, without metadata
    pass

if sys.argv[2]:
    try:
        import ctypes

        library = ctypes.CDLL(sys.argv[2])
        library.ebb_version.restype = ctypes.c_char_p
        found["load"] = library.ebb_version().decode()
    except (ImportError, OSError, AttributeError) as err:
        found["load_error"] = str(err)

print("\nebb-adopt " + json.dumps(found))
