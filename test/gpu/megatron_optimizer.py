"""Megatron-core's distributed optimizer with streamed state on a GPU, in a world of one: the bits of its own, through
checkpoints in each of its kinds, and with parking. Needs megatron-core, whose wheel scripts/test-gpu.sh unpacks, and
no Transformer Engine: with it Megatron's own Adam is another function.
"""

import copy
import os
import socket
import tempfile

import torch

import ebb
import ebb.megatron
from gputest import check, finish
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig

STEPS = 30
KINDS = ("dp_reshardable", "fully_reshardable")
DISK = os.environ["TMS_DISK_BACKUP_DIR"]


class Model(torch.nn.Module):
    """Large enough for several buckets; of sizes that no bucket divides."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(257, 1031), torch.nn.LayerNorm(1031), torch.nn.GELU(), torch.nn.Linear(1031, 519),
            torch.nn.GELU(), torch.nn.Linear(519, 63),
        )

    def forward(self, x):
        return self.layers(x)


class Trained:
    """A model in Megatron's wrapper with its optimizer, streamed or not."""

    def __init__(self, streamed, clip=1.0):
        torch.manual_seed(1)
        transformer = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4)
        settings = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
        self.model = DistributedDataParallel(transformer, settings, Model(transformer).to("cuda", torch.bfloat16))
        config = OptimizerConfig(
            optimizer="adam", lr=1e-3, weight_decay=0.1, bf16=True, params_dtype=torch.bfloat16,
            use_distributed_optimizer=True, clip_grad=clip,
        )
        if streamed:
            self.optimizer = ebb.megatron.get_megatron_optimizer(config, [self.model], streaming={"bucket_elements": 100_000})
        else:
            self.optimizer = get_megatron_optimizer(config, [self.model])
        self.inner = self.optimizer.chained_optimizers[0].optimizer

    def step(self, number):
        generator = torch.Generator(device="cuda").manual_seed(number)
        x = torch.randn(64, 257, generator=generator, device="cuda").bfloat16()
        y = torch.randn(64, 63, generator=generator, device="cuda")
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        loss = (self.model(x).float() - y).pow(2).mean()
        loss.backward()
        self.model.finish_grad_sync()
        self.optimizer.step()
        return loss.item().hex()

    def steps(self, first, count):
        return [self.step(number) for number in range(first, first + count)]

    def like(self, other):
        """Takes the parameters of another, as a checkpoint of the model would."""
        with torch.no_grad():
            for mine, theirs in zip(self.model.parameters(), other.model.parameters()):
                mine.copy_(theirs)
        return self

    def sharded(self, kind, is_loading=False):
        tensors = {
            name: ShardedTensor.from_rank_offsets(name, value, replica_id=(0, 0, 0))
            for name, value in self.model.module.state_dict(keep_vars=True).items()
        }
        return {"optimizer": self.optimizer.sharded_state_dict(
            tensors, is_loading=is_loading, metadata={"distrib_optim_sharding_type": kind})}

    def close(self):
        if hasattr(self.inner, "streamed"):
            self.inner.streamed.close()


def bits():
    for clip in (0.0, 0.5):
        plain, mine = Trained(False, clip), Trained(True, clip)
        with check(f"megatron, {STEPS} steps, clip {clip}") as note:
            expected, seen = plain.steps(0, STEPS), mine.steps(0, STEPS)
            assert seen == expected, f"{sum(a != b for a, b in zip(seen, expected))} of {STEPS} losses differ"
            assert float.fromhex(seen[-1]) < float.fromhex(seen[0]), "nothing was learnt"
            for a, b in zip(plain.model.parameters(), mine.model.parameters()):
                assert torch.equal(a, b), "parameters differ"
            assert mine.inner.streamed.last.buckets > 3
            note.detail = f"0 bits differ, {mine.inner.streamed.last.buckets} buckets"
        mine.close()


def checkpoints():
    source = Trained(True)
    source.steps(0, 5)
    with check("megatron, parameter state"), tempfile.TemporaryDirectory(dir=DISK) as folder:
        path = os.path.join(folder, "state.pt")
        source.optimizer.save_parameter_state(path)
        twin = Trained(True).like(source)
        twin.optimizer.load_state_dict(copy.deepcopy(source.optimizer.state_dict()))
        twin.optimizer.load_parameter_state(path)
        assert twin.steps(10, 3) == source.steps(10, 3)
        twin.close()
    for number, kind in enumerate(KINDS, 2):
        with check(f"megatron, checkpoint {kind}"), tempfile.TemporaryDirectory(dir=DISK) as folder:
            dist_checkpointing.save(source.sharded(kind), folder)
            twin = Trained(True).like(source)
            loaded = dist_checkpointing.load(twin.sharded(kind, is_loading=True), folder)
            twin.optimizer.load_state_dict(loaded["optimizer"])
            assert twin.steps(10 * number, 3) == source.steps(10 * number, 3)
            twin.close()
    with check("megatron, parameters from elsewhere"):
        twin = Trained(True).like(source)
        plain = Trained(False).like(source)
        for each in (twin, plain):
            each.optimizer.reload_model_params()
        assert twin.steps(50, 3) == plain.steps(50, 3)
        twin.close()
    source.close()


def memory():
    with check("megatron, no master on the GPU") as note:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        plain = Trained(False)
        plain.step(0)
        between = torch.cuda.memory_allocated()
        mine = Trained(True)
        mine.step(0)
        after = torch.cuda.memory_allocated()
        elements = sum(p.numel() for p in mine.model.parameters())
        saved = (between - before) - (after - between)
        assert saved > 11 * elements, f"{saved} bytes less for {elements} parameters"
        note.detail = f"{saved / elements:.1f} bytes a parameter less"
        mine.close()


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl")
    parallel_state.initialize_model_parallel()
    torch.use_deterministic_algorithms(True)
    bits()
    checkpoints()
    memory()
    torch.distributed.destroy_process_group()
    finish()


if __name__ == "__main__":  # Megatron's checkpoints start processes
    main()
