"""ddp.py LOSSES STEPS PARK_EVERY MEETING: a rank of a DistributedDataParallel training over NCCL, whose losses go,
exactly, to the file LOSSES and its rank. After every PARK_EVERY steps (0: never) it parks all its GPU memory, the
buffers of the all-reduce too. In the last such pause rank 0 asks `ebb status` (MULTI_EBB) what NCCL keeps."""

import subprocess

import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gputest import *
from multi import *
from train import BATCH, LENGTH, VOCABULARY, Model


class Park:
    def __init__(self, every, steps, meeting):
        self.every, self.last = every, steps - steps % every
        self.ebb, self.meet = Ebb(), Meeting(meeting)
        self.cycles, self.parked, self.faults = 0, 0, []

    def after(self, step):
        if step % self.every:
            return
        torch.cuda.synchronize()
        before, held = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
        done = self.ebb.must_pause()
        risen = torch.cuda.mem_get_info()[0] - before
        if done.bytes < held or done.kept_bytes or risen < done.device_bytes - DRIVER_OWN:
            self.faults.append(f"rank {RANK}, step {step}: parked {done.bytes} of {held} bytes, {done.kept_bytes} stayed, {risen} became free")
        if step == self.last:
            self.meet.exchange()  # all are paused
            if RANK == 0:
                what_nccl_keeps()
            self.meet.exchange()
        self.ebb.must_resume()
        self.cycles, self.parked = self.cycles + 1, done.bytes

    def report(self):
        faults = sum(self.meet.exchange(self.faults), [])
        if RANK == 0:
            with check("DDP: memory of both GPUs free in every cycle") as note:
                assert not faults, "; ".join(faults[:5])
                note.detail = f"{self.cycles} cycles, {WORLD} x {self.parked / GiB:.2f} GiB"


def what_nccl_keeps():
    with check("status: names what NCCL keeps of paused ranks") as note:
        ask = [os.environ["MULTI_EBB"], "status"]
        ranks = json.loads(subprocess.run([*ask, "--json"], capture_output=True, check=True, timeout=STEP / 2).stdout)["ranks"]
        text = subprocess.run(ask, capture_output=True, check=True, text=True, timeout=STEP / 2).stdout
        print(text, flush=True)
        assert len(ranks) == WORLD, f"{len(ranks)} ranks"
        for rank in ranks:
            status = rank["status"]
            assert status["bytes_active"] == 0, f"{status['bytes_active']} bytes are active"
            classes = {c["name"]: c["bytes"] for c in status["unmanaged"]["classes"]}
            assert classes.get("nccl"), f"no class nccl: {classes}"
            figure(f"status: kept by NCCL, rank {rank['rank']}", classes["nccl"] / MiB, "MiB")
            figure(f"status: all that is not managed, rank {rank['rank']}", status["unmanaged"]["total"] / MiB, "MiB")
        assert "nccl" in " ".join(text.split()), "the text does not name NCCL"
        note.detail = f"{len(ranks)} ranks"


def main():
    losses_file, steps, every, meeting = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    deadline(2 * STEP)
    device = torch.device("cuda", LOCAL_RANK)
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl", device_id=device)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    model = DistributedDataParallel(Model().to(device), device_ids=[LOCAL_RANK])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    park = Park(every, steps, meeting) if every else None
    torch.manual_seed(100 + RANK)  # every rank has data of its own
    losses = []
    for step in range(1, steps + 1):
        deadline()
        start = torch.randint(0, VOCABULARY, (BATCH, 1), device=device)
        tokens = (start + 17 * torch.arange(LENGTH + 1, device=device)) % VOCABULARY
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        if park:
            park.after(step)
    deadline()
    with open(f"{losses_file}.{RANK}", "w", encoding="ascii") as out:
        out.write("\n".join(losses) + "\n")
    if park:
        park.report()
    deadline()
    torch.distributed.destroy_process_group()
    finish()


if __name__ == "__main__":
    main()
