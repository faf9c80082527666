"""leave.py MODE: ends, as programs end, while its memory is paused. The status must be 0."""

from saver import *

kept = [filled(64 * MiB, seed, tag="left", **backup)
        for seed, backup in enumerate(({}, {"enable_cpu_backup": True}, {"enable_disk_backup": True}))]
saver.pause()
finish()
