#!/usr/bin/env python3
"""Compiles internal/device/cuda/fingerprint.cu to fingerprint.ptx beside it.

The PTX is checked in. It is for compute capability 7.0 and later: the driver compiles it for the
GPU that it finds. This uses one fixed version of NVIDIA's compiler library (NVRTC), which it fetches
into build/nvrtc, and no other part of CUDA, so that everybody gets the same text. The first line
of the PTX says which sources it was made of; a test compares that.
"""

import ctypes
import hashlib
import pathlib
import subprocess
import sys

PACKAGE = "nvidia-cuda-nvrtc-cu11==11.8.89"
OPTIONS = [b"--gpu-architecture=compute_70", b"--std=c++14", b"--device-as-default-execution-space"]
ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "internal/device/cuda"
SOURCES = ["fingerprint.cu", "fingerprint.h"]


def nvrtc() -> ctypes.CDLL:
    site = ROOT / "build/nvrtc" / PACKAGE.partition("==")[2]
    library = site / "nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2"
    if not library.exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", site, PACKAGE],
            check=True,
        )
    # The other library of the package is looked up by its bare name.
    ctypes.CDLL(str(library.with_name("libnvrtc-builtins.so.11.8")), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library))


def compile_ptx(source: bytes, header: bytes) -> str:
    lib = nvrtc()

    def text(size_of: str, get: str) -> bytes:
        size = ctypes.c_size_t()
        if lib[size_of](program, ctypes.byref(size)) != 0:
            sys.exit(f"make-ptx: {size_of} failed")
        buffer = ctypes.create_string_buffer(size.value)
        if lib[get](program, buffer) != 0:
            sys.exit(f"make-ptx: {get} failed")
        return buffer.value

    program = ctypes.c_void_p()
    headers, names = (ctypes.c_char_p * 1)(header), (ctypes.c_char_p * 1)(b"fingerprint.h")
    if lib.nvrtcCreateProgram(ctypes.byref(program), source, b"fingerprint.cu", 1, headers, names) != 0:
        sys.exit("make-ptx: nvrtcCreateProgram failed")
    failed = lib.nvrtcCompileProgram(program, len(OPTIONS), (ctypes.c_char_p * len(OPTIONS))(*OPTIONS))
    log = text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").decode()
    if failed or log.strip():  # warnings are errors
        sys.exit(f"make-ptx: {log}")
    return text("nvrtcGetPTXSize", "nvrtcGetPTX").decode()


def main() -> None:
    texts = [(FOLDER / name).read_bytes() for name in SOURCES]
    digest = hashlib.sha256(b"".join(texts)).hexdigest()
    ptx = compile_ptx(*texts)
    (FOLDER / "fingerprint.ptx").write_text(f"// of {' and '.join(SOURCES)}, sha256 {digest}, by make ptx\n{ptx}")


main()
