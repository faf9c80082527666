"""disable_inside.py MODE: disable() inside of a region, by torch_memory_saver's public API. Not a
check: how the process ends is recorded, with its own library and with ebb's."""

import sys

import torch
from torch_memory_saver import torch_memory_saver as saver

saver.hook_mode = sys.argv[1]
with saver.region(tag="outer"):
    inside = torch.full((1 << 20,), 1, device="cuda")
    with saver.disable():
        kept = torch.full((1 << 20,), 2, device="cuda")
    after = torch.full((1 << 20,), 3, device="cuda")
torch.cuda.synchronize()
print("values", inside[0].item(), kept[0].item(), after[0].item(), flush=True)
del inside, kept, after
torch.cuda.empty_cache()
print("done", flush=True)
