"""Device memory outside of PyTorch's caching allocator, and tensors over it. For the slots of streamed state: made
and given back as a whole, at once. No pause saves its content: where the rank has managed memory, a pause takes it
like that, under a tag of its own, and elsewhere leaves it.

On a GPU these are CUDA tensors. The software GPU's memory can be addressed by the CPU, so over it they are CPU
tensors: programs for CUDA can be tried without a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import Any, List

from . import _abi, _memory, _region
from ._errors import DeviceError, Error, OutOfDeviceMemory, UnsafeConfiguration

_SOFTWARE_RUNTIME = "libcudart.so.13"
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation

TAG = "ebb.optim"
"""Of managed memory made here."""


class Memory:
    """So many bytes of device memory. torch: the module. device: a torch.device, "cuda" or "cpu".

    Whoever uses tensors of it after free() uses memory of others. Raises OutOfDeviceMemory, DeviceError,
    UnsafeConfiguration, NotLoaded.
    """

    def __init__(self, torch: Any, device: Any, size: int) -> None:
        self._device, self._torch, self.size = device, torch, size
        self._process = os.getpid()
        self._pointer = ctypes.c_void_p()  # set by the function that allocates: an interruption (Ctrl-C) takes its result away
        self.managed = any(t["tag"] != TAG and t["allocations"] for t in _memory.status().get("tags", ()))
        """A pause takes it: its content is undefined afterwards."""
        self.pauses = _memory.pause_count(TAG)
        """That took such memory when it was made, or before."""
        if device.type == "cpu" and not _is_software_gpu():
            raise UnsafeConfiguration(
                "streamed state passes through GPU memory, and these parameters are on the CPU: move the model to "
                "the GPU before its optimizer is made"
            )
        try:
            self._allocate()
            self.bytes = self._tensor()
            """All of it, as a tensor of torch.uint8."""
        except BaseException:  # interrupted (Ctrl-C), when the memory is there already
            self.free()
            raise

    def free(self) -> None:
        """Gives the memory back. Work of the device that uses it has ended, or is waited for. After a DeviceError it can be
        called again."""
        address = self._pointer.value
        if address:
            free, pointer = _abi.library().cudaFree, ctypes.c_void_p(address)
            with current(self._torch, self._device):
                # Before the call: where that is interrupted, the address may be somebody else's by the next one.
                self._pointer.value = None
                code = free(pointer)
            if code != 0:
                self._pointer.value = address
                raise DeviceError(f"cudaFree of {self.size} bytes of streamed state at {address:#x}: error {code}")

    def __del__(self) -> None:
        """For memory that an interruption left to nobody: whoever has it frees it."""
        if getattr(self, "_pointer", None) and self._process == os.getpid() and not sys.is_finalizing():
            with contextlib.suppress(Error):
                self.free()

    def _allocate(self) -> None:
        code = self._malloc()
        if code == _OUT_OF_MEMORY and self._device.type == "cuda":
            self._torch.cuda.empty_cache()  # what PyTorch keeps for reuse may be enough
            code = self._malloc()
        if code == _OUT_OF_MEMORY:
            raise OutOfDeviceMemory(
                f"no {self.size} bytes of GPU memory for streamed state: make bucket_elements or buckets_in_flight smaller",
                {"need_bytes": self.size},
            )
        if code != 0:
            raise DeviceError(f"cudaMalloc of {self.size} bytes for streamed state: error {code}")

    def _malloc(self) -> int:
        kind = _region.region(TAG) if self.managed else _region.disable()
        with current(self._torch, self._device), kind:
            code: int = _abi.library().cudaMalloc(ctypes.byref(self._pointer), ctypes.c_size_t(self.size))
        return code

    def _tensor(self) -> Any:
        if self._device.type == "cpu":
            return self._torch.frombuffer((ctypes.c_ubyte * self.size).from_address(self._pointer.value or 0), dtype=self._torch.uint8)
        place = {"shape": (self.size,), "typestr": "|u1", "data": (self._pointer.value, False), "version": 2}
        array = type("Array", (), {"__cuda_array_interface__": place})()
        return self._torch.as_tensor(array, device=self._device)


def free_all(memories: List[Memory]) -> None:
    """Gives all of it back, and takes what is given back out of the list: the rest is for another try. Raises DeviceError,
    which names each that the driver did not take."""
    refused: List[DeviceError] = []
    for memory in list(memories):
        try:
            memory.free()
        except DeviceError as err:
            refused.append(err)
        else:
            memories.remove(memory)
    if refused:
        raise DeviceError(
            f"{len(memories)} pieces of GPU memory of streamed state were not given back ({'; '.join(map(str, refused))}): an "
            "earlier error of the device, most likely. They are tried again with the next release() or close()"
        ) from refused[0]


def current(torch: Any, device: Any) -> Any:
    """A context manager in which the device, a torch.device, is the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _is_software_gpu() -> bool:
    """Whether the driver is the software GPU. Then its runtime is loaded too: a PyTorch for CPUs has none."""
    try:
        if not hasattr(ctypes.CDLL("libcuda.so.1"), "softgpu_view"):
            return False
        ctypes.CDLL(_SOFTWARE_RUNTIME)
    except OSError:
        return False
    return True
