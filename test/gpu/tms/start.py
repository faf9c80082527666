"""start.py PROGRAM ARG...: starts a program with the library preloaded, as torch_memory_saver's users
do: by the package's own configure_subprocess. Ends with the program's status."""

import subprocess
import sys

from torch_memory_saver import configure_subprocess

with configure_subprocess():
    child = subprocess.run([sys.executable] + sys.argv[1:])
sys.exit(child.returncode)
