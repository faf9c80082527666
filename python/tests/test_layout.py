"""The package against abi/ebb.h, as the compiler sees it."""

import ctypes
import os
import re
import subprocess
import tempfile
import unittest

from ebb import _abi, _errors, _region, _state
from support import DISK, ROOT

HEADER = (ROOT / "abi/ebb.h").read_text()


def compiled(lines):
    """What a C program with these statements prints, as pairs of name and number."""
    program = '#include "ebb.h"\n#include <stdio.h>\nint main(void)\n{\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        binary = os.path.join(folder, "layout")
        subprocess.run(
            ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "abi"), "-x", "c", "-", "-o", binary],
            input=program.encode(), check=True,
        )
        out = subprocess.run([binary], stdout=subprocess.PIPE, check=True).stdout.decode()
    return {name: int(number) for name, number in (line.split() for line in out.splitlines())}


def prints(name, expression):
    return f'printf("{name} %zu\\n", (size_t)({expression}));'


class Layout(unittest.TestCase):
    def test_the_structs(self):
        for name, struct in (
            ("ebb_result", _abi.ResultStruct), ("ebb_range", _abi.RangeStruct),
            ("ebb_state_io", _state.PartStruct), ("ebb_state_done", _state.DoneStruct),
        ):
            body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", HEADER, re.S).group(1)
            names = re.findall(r"^\s*[\w ]+[ *](\w+);", body, re.M)
            self.assertEqual([field for field, *_ in struct._fields_], names)
            c = compiled(
                [prints("all", f"sizeof({name})")]
                + [prints(f"offset_{field}", f"offsetof({name}, {field})") for field in names]
                + [prints(f"size_{field}", f"sizeof((({name} *)0)->{field})") for field in names]
            )
            self.assertEqual(c["all"], ctypes.sizeof(struct))
            for field in names:
                mine = getattr(struct, field)
                self.assertEqual((c[f"offset_{field}"], c[f"size_{field}"]), (mine.offset, mine.size), field)

    def test_every_code_has_its_class(self):
        names = re.findall(r"^\s*(EBB_ERR_\w+)\s*=", HEADER, re.M)
        codes = compiled([prints(name, name) for name in names])
        self.assertEqual(sorted(codes.values()), sorted(_errors.CLASSES))
        for name, cls in {
            "EBB_ERR_DEVICE_MEMORY": _errors.OutOfDeviceMemory, "EBB_ERR_NO_SPACE": _errors.NoSpace,
            "EBB_ERR_CORRUPT": _errors.CorruptBackup, "EBB_ERR_FORKED": _errors.ForkedChild,
            "EBB_ERR_NOT_LOADED": _errors.NotLoaded, "EBB_ERR_CAPTURE": _errors.CaptureActive,
            "EBB_ERR_UNMANAGED": _errors.Unmanaged, "EBB_ERR_TIMEOUT": _errors.Timeout,
            "EBB_ERR_PARTIAL": _errors.PartialPause, "EBB_ERR_STATE": _errors.WrongState,
            "EBB_ERR_IO": _errors.DiskError, "EBB_ERR_HOST_MEMORY": _errors.OutOfHostMemory,
            "EBB_ERR_WRITTEN": _errors.WrittenDuringPause,
        }.items():
            self.assertIs(_errors.CLASSES[codes[name]], cls)

    def test_backups_and_signatures(self):
        names = re.findall(r"^\s*EBB_BACKUP_(\w+)\s*=", HEADER, re.M)
        self.assertEqual(tuple(name.lower() for name in names), _region.BACKUPS)
        plain = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
        for name, (result, arguments) in {**_abi.FUNCTIONS, **_state.FUNCTIONS}.items():
            kind, parameters = re.search(rf"^([\w ]+[ *]){name}\(([^)]*)\)", plain, re.M).groups()
            given = [] if parameters.strip() == "void" else [self.type(p.rsplit(None, 1)[0] + " *" * p.rsplit(None, 1)[1].count("*")) for p in parameters.split(",")]
            self.assertEqual((self.type(kind), given), (result, list(arguments)), name)

    @staticmethod
    def type(c):
        words = c.replace("*", " * ").split()
        text = " ".join(word for word in words if word != "const")
        return {
            "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "uint64_t *": ctypes.POINTER(ctypes.c_uint64),
            "ebb_state_io *": ctypes.POINTER(_state.PartStruct), "ebb_state_done *": ctypes.POINTER(_state.DoneStruct),
            "void": None, "int": ctypes.c_int, "bool": ctypes.c_bool, "size_t": ctypes.c_size_t, "double": ctypes.c_double,
            "char *": ctypes.c_char_p, "char * *": ctypes.POINTER(ctypes.c_char_p), "void *": ctypes.c_void_p,
            "ebb_result *": ctypes.POINTER(_abi.ResultStruct), "ebb_range *": ctypes.POINTER(_abi.RangeStruct), "size_t *": ctypes.POINTER(ctypes.c_size_t),
        }[text]


if __name__ == "__main__":
    unittest.main()
