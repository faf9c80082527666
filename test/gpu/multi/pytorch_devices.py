"""pytorch_devices.py NAME: one PyTorch process with tensors on two GPUs, all of it managed: both devices' memory is freed and
restored, and a model that is split over both trains to the same losses with parking as without."""

from torch import nn

from gputest import *
from multi import deadline

NAME = sys.argv[1]
DEVICES = [torch.device("cuda", i) for i in (0, 1)]
ebb = Ebb()


def free_of_each():
    return [torch.cuda.mem_get_info(device)[0] for device in DEVICES]


def both_freed_and_restored():
    tensors = []
    for device in DEVICES:
        with torch.cuda.device(device):
            for seed, size in enumerate((256 * MiB, 100 * MiB + 12345, 4097)):
                tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
                fill_random(tensor, seed + 10 * device.index)
                tensors.append(tensor)

    def fingerprints():
        found = []
        for tensor in tensors:
            with torch.cuda.device(tensor.device):
                found.append(fingerprint(tensor))
        return found

    known, places = fingerprints(), [tensor.data_ptr() for tensor in tensors]
    for cycle in range(3):
        deadline()
        other = tensors[0].to(DEVICES[1])  # by way of peer access where there is any
        for device in DEVICES:
            torch.cuda.synchronize(device)
        held, before = [torch.cuda.memory_reserved(device) for device in DEVICES], free_of_each()
        done = ebb.must_pause()
        risen = [after - then for after, then in zip(free_of_each(), before)]
        assert done.kept_bytes == 0 and done.bytes >= sum(held), f"parked {done.bytes}, PyTorch holds {held}, {done.kept_bytes} stayed"
        assert all(a >= b - DRIVER_OWN for a, b in zip(risen, held)), f"became free: {risen} of {held}"
        ebb.must_resume()
        assert fingerprints() == known and [tensor.data_ptr() for tensor in tensors] == places, f"cycle {cycle}: bytes or places differ"
        assert torch.equal(other.cpu(), tensors[0].cpu()), "a copy from GPU 0 to GPU 1 differs"
        assert torch.equal(tensors[3].to(DEVICES[0]).cpu(), tensors[3].cpu()), "a copy from GPU 1 to GPU 0 differs after a resume"
    return f"{held[0] / MiB:.0f} and {held[1] / MiB:.0f} MiB, peer access {torch.cuda.can_device_access_peer(*DEVICES)}"


def losses(park_every):
    torch.manual_seed(1)
    first, second = nn.Sequential(nn.Linear(2048, 4096), nn.GELU()).to(DEVICES[0]), nn.Linear(4096, 2048).to(DEVICES[1])
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-3)
    found = []
    for step in range(1, 13):
        deadline()
        x = torch.randn(256, 2048, device=DEVICES[0])
        loss = nn.functional.mse_loss(second(first(x).to(DEVICES[1])), x.to(DEVICES[1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item().hex())
        if park_every and step % park_every == 0:
            ebb.must_pause()
            ebb.must_resume()
    return found


def the_same_losses():
    torch.use_deterministic_algorithms(True)
    without, parked = losses(0), losses(3)
    assert without == parked, f"{sum(a != b for a, b in zip(without, parked))} losses differ"
    return f"{len(parked)} losses identical, 4 cycles"


deadline(120)
for title, action in ("freed and restored", both_freed_and_restored), ("a model over both GPUs", the_same_losses):
    with check(f"two GPUs, PyTorch, {NAME}: {title}") as note:
        note.detail = action()
finish()
