"""ray_job.py WORK DIST: what must hold of ebb.ray, on a Ray cluster of three raylets that it starts on this machine:
three nodes, each with a software GPU and a scratch directory of its own. It prints a line for
each thing that held. It runs in namespaces of its own (ray_test.go): no process but its own is to be seen, no
network but the loopback interface, and a /dev/shm of its own."""

import contextlib
import faulthandler
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

import ebb.ray
from ray_trainer import AsyncTrainer, Lazy, Plain, Stepping, Trainer

WORK, DIST = sys.argv[1:]
RANKS = 3
STEPS = 12
LONG = 180.0  # seconds: a deadline that is not meant to pass
COMMAND = f"{DIST}/bin/ebb"
SOCKETS = os.environ["EBB_RUNTIME_DIR"]
begin = time.monotonic()


def held(what):
    print(f"held: {what} ({time.monotonic() - begin:.1f} s)", flush=True)


def skipped(what, why):
    print(f"skipped: {what}: {why}", flush=True)


def scratch(number):
    return f"{WORK}/scratch{number}"


def device(number):
    return {"SOFTGPU_NODE": f"ray-{number}", "SOFTGPU_MEM_MB": "256"}


def files(number, below=""):
    """The backup files on the disk of a node."""
    return sorted(os.path.join(at, name) for at, _, names in os.walk(scratch(number) + below) for name in names if name.endswith(".bak"))


def until(what, condition):
    """Waits for an event. The test that runs this ends it when it hangs."""
    while True:
        value = condition()
        if value:
            return value
        time.sleep(0.02)


class Nodes:
    """The cluster."""

    def __init__(self):
        self.cluster = Cluster(initialize_head=True, head_node_args=self.arguments(0))  # node 0
        self.raylets, self.ids = {}, {}
        for number in range(1, RANKS):
            self.add(number)
        ray.init(address=self.cluster.address, log_to_driver=True)
        self.learn()

    @staticmethod
    def arguments(number):
        os.makedirs(scratch(number), mode=0o700, exist_ok=True)
        return dict(
            num_cpus=4, node_ip_address="127.0.0.1", include_dashboard=False, object_store_memory=80 << 20,
            env_vars={"SCRATCH": scratch(number), "EBB_OFFLOAD_TRAIN_TARGET": "disk", **device(number)}, labels={"number": str(number)})

    def add(self, number):
        self.raylets[number] = self.cluster.add_node(wait=False, **self.arguments(number))

    def learn(self):
        """Which node has which number."""
        until("the nodes to come", lambda: len([n for n in ray.nodes() if n["Alive"] and n["Labels"].get("number")]) == RANKS)
        self.ids = {int(n["Labels"]["number"]): n["NodeID"] for n in ray.nodes() if n["Alive"] and n["Labels"].get("number")}
        self.numbers = {node: number for number, node in self.ids.items()}


def env(rank, **more):
    """The runtime_env of a rank: target and directory are those of the node where it runs."""
    return ebb.ray.runtime_env(**{
        "rank": rank, "world_size": RANKS, "chunk_mb": 16, "device": "soft", "python": sys.executable,
        "env_vars": {"EBB_RUNTIME_DIR": SOCKETS}, **more})


def step(actors, number):
    """One step of all ranks; the mean of their losses."""
    answers = ray.get([actor.gradient.remote(number) for actor in actors])
    mean = [sum(values) / len(answers) for values in zip(*(gradient for _, gradient in answers))]
    ray.get([actor.update.remote(mean) for actor in actors])
    return sum(loss for loss, _ in answers) / len(answers)


def whole(group):
    """Waits until every rank answers, restarted ones too."""
    def answered():
        report = group.status(LONG)
        return report if report.done else None
    return until("all ranks", answered)


def kill(group, rank):
    """kill -9 of a rank's process."""
    pid = ray.get(group._actors[rank].who.remote())[0]
    os.kill(pid, signal.SIGKILL)
    until("its end", lambda: not os.path.exists(f"/proc/{pid}"))


def recover(actors, rank, report):
    """A restarted rank takes the state of another, as data parallel ranks can."""
    other = next(r.rank for r in report.ranks if r.rank != rank)
    ray.get(actors[rank].load.remote(ray.get(actors[other].dump.remote())))


def training(nodes, actors, losses):
    """The main job: steps with pauses between them; one rank is killed in the midst of the steps, one while paused."""
    group = ebb.ray.ActorGroup(actors)
    report = group.status(LONG)
    assert report.done and [r.state for r in report.ranks] == ["active"] * RANKS, report
    assert len({r.node for r in report.ranks}) == RANKS, report
    where = {r.rank: nodes.numbers[r.node] for r in report.ranks}
    said = [ray.get(actor.variables.remote()) for actor in actors]
    assert all(v["LD_PRELOAD"] == f"{DIST}/lib/torch_memory_saver/libebb.so" and v["EBB_LEASE"] for v in said), said
    assert len({v["TMS_DISK_BACKUP_DIR"] for v in said}) == RANKS
    assert all(v["TMS_DISK_BACKUP_DIR"].startswith(f"{scratch(where[rank])}/") for rank, v in enumerate(said)), said
    held("each rank has an environment and a directory of its own, on the node where it runs")

    mine = []
    for number in range(4):
        mine.append(step(actors, number))
        with group.paused(LONG) as report:
            assert [r.state for r in report.ranks] == ["paused"] * RANKS and report.bytes > RANKS * (12 << 20), report
            assert all(files(n) for n in range(RANKS))
            again = group.pause(LONG)
            assert again.done and again.bytes == 0, again
        ray.get([actor.check.remote() for actor in actors])
        assert group.resume(LONG).done  # already
    held("pauses and resumes of the whole job can be repeated, and bring the same bytes back")

    with contextlib.suppress(ebb.ray.GroupError):
        with group.paused(LONG):
            raise ebb.ray.GroupError(report)
    assert [r.state for r in group.status(LONG).ranks] == ["active"] * RANKS
    held("the memory is back after an exception in the body of paused")

    # In the midst of a step: one rank has its gradient, another is killed over it.
    before = ray.get(actors[1].variables.remote())["TMS_DISK_BACKUP_DIR"]
    pending = [actor.gradient.remote(4) for actor in actors]
    kill(group, 1)
    with contextlib.suppress(ray.exceptions.RayError):
        ray.get(pending[1])
    report = group.pause(LONG)
    # Ray says for certain that it died, or only that it cannot be reached.
    assert not report.done and report.of("dead") + report.of("unavailable") == [1] and report.of("done") == [0, 2], report
    lost = "lost" if report.of("dead") else "unknown"
    assert [r.state for r in report.ranks] == ["paused", lost, "paused"], report
    assert f"rank 1: {report.ranks[1].outcome}" in str(report) and "group.bring_back(" in str(report), report
    back = group.bring_back(LONG)
    assert back.done and {r.rank for r in back.ranks} >= {0, 2}, back
    held("a pause with a dead rank is not done: it is named, the state of the others is known, and they come back")
    report = whole(group)
    assert [r.restarts for r in report.ranks] == [0, 1, 0] and not report.ranks[1].left_on, report
    assert ray.get(actors[1].variables.remote())["TMS_DISK_BACKUP_DIR"] == before
    recover(actors, 1, report)
    for number in range(4, 7):
        mine.append(step(actors, number))
    held("the rank that Ray restarted has its own directory again, and the job goes on")

    assert group.pause(LONG).done
    state = files(where[2])
    assert state
    kill(group, 2)
    until("the files of the killed rank to go", lambda: not set(state) & set(files(where[2])))
    assert files(where[0]) and files(where[1])
    held("the files of a rank that is killed while paused go, and only they")
    group.resume(LONG)
    group.bring_back(LONG)
    report = whole(group)
    assert [r.state for r in report.ranks] == ["active"] * RANKS, report
    recover(actors, 2, report)
    for number in range(7, STEPS):
        with group.paused(LONG):
            pass
        mine.append(step(actors, number))
    ray.get([actor.check.remote() for actor in actors])
    assert mine == losses, (mine, losses)
    held(f"the losses of {STEPS} steps are those of the run without parking, bit for bit: {losses[0]:.4f} to {losses[-1]:.4f}")

    flag = f"{WORK}/go-on"
    waits = actors[0].busy_until.remote(flag)
    report = group.pause(1)
    assert not report.done and report.ranks[0].outcome == "late" and report.ranks[0].state == "unknown", report
    assert all(r.outcome == "late" or r.state == "paused" for r in report.ranks), report
    try:
        with group.paused(0.2):
            raise AssertionError("a group was paused whose rank is busy")
    except ebb.ray.GroupError as err:
        assert 0 in err.report.of("late") and err.brought_back is not None, err
    with open(flag, "w", encoding="ascii"):
        pass
    ray.get(waits)
    assert group.bring_back(LONG).done
    report = group.status(LONG)
    assert [r.state for r in report.ranks] == ["active"] * RANKS, report
    held("a rank that comes too late to a pause does nothing: it is named, and the others come back")

    broken = "a live rank that Ray cannot reach is not taken for dead, and comes back with the others"
    if breakable():
        out_of_reach(group, actors)
        held(broken)
    else:
        skipped(broken, "this kernel ends no connection for ss -K (CONFIG_INET_DIAG_DESTROY)")

    listed = subprocess.run([COMMAND, "status", "--json", "--runtime-dir", SOCKETS], stdout=subprocess.PIPE, check=True, text=True).stdout
    ranks = {(r["status"]["role"], int(r["status"]["rank"])) for r in json.loads(listed)["ranks"] if "status" in r}
    assert {("actor", rank) for rank in range(RANKS)} <= ranks, listed
    held("ebb status shows the actors")
    return group, where


def out_of_reach(group, actors):
    """Connections to a live rank break while it is asked to pause: Ray cannot say whether it does."""
    flag = f"{WORK}/go-on-again"
    pid = ray.get(actors[1].who.remote())[0]
    actors[1].busy_until.remote(flag)
    reports = []
    pausing = threading.Thread(target=lambda: reports.append(group.pause(LONG)))
    pausing.start()
    while pausing.is_alive():
        disconnect(os.getpid(), pid)
        pausing.join(0.1)
    assert reports[0].of("unavailable") == [1] and reports[0].of("done") == [0, 2] and not reports[0].done, reports
    assert reports[0].ranks[1].state == "unknown", reports
    with open(flag, "w", encoding="ascii"):
        pass
    back = group.bring_back(LONG)
    assert back.done and [r.state for r in back.ranks] == ["active"] * RANKS, back
    assert ray.get(actors[1].who.remote())[0] == pid
    ray.get([actor.check.remote() for actor in actors])


def breakable():
    """Whether the kernel breaks connections when asked to."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.settimeout(0)
        end(client.getsockname()[1], server.getsockname()[1])
        try:
            client.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True
    raise AssertionError("a connection ended by itself")


def end(port, to):
    """Ends a TCP connection from one port to another, if it is there."""
    subprocess.run(["ss", "-K", "-t", "sport", "=", f":{port}", "and", "dport", "=", f":{to}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def disconnect(one, other):
    """Breaks the TCP connections from one process to another."""
    def ports(options, pid, column):
        lines = subprocess.run(["ss", "-H", "-t", "-n", "-p", *options], stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
        return [line.split()[column].rpartition(":")[2] for line in lines if f"pid={pid}," in line]

    for port in ports(["-l"], other, 3):
        for local in ports(["dport", "=", f":{port}"], one, 3):
            end(local, port)


def node_dies(nodes, group, actors, where):
    """A node is gone with all its processes; Ray restarts its actor on another one."""
    rank = next(rank for rank in (2, 1) if where[rank] != 0)  # not on the head, without which there is no Ray
    lost = where[rank]
    assert group.pause(LONG).done
    left = files(lost)
    assert left
    pid, supervisor = ray.get(actors[rank].who.remote())
    os.kill(supervisor, signal.SIGSTOP)  # it shall not remove anything: the node has no power
    raylet = nodes.raylets[lost]
    nodes.cluster.remove_node(raylet, allow_graceful=False)
    os.kill(supervisor, signal.SIGKILL)
    until("the end of the rank", lambda: not os.path.exists(f"/proc/{pid}"))
    assert files(lost) == left
    report = group.pause(LONG)
    assert not report.done and rank not in report.of("done"), report
    group.bring_back(LONG)
    report = whole(group)
    moved = report.ranks[rank]
    assert moved.left_on == (nodes.ids[lost],) and moved.node != nodes.ids[lost], report
    assert f"rank {rank}: done" in str(report) and nodes.ids[lost] in str(report), report
    assert group.pause(LONG).done and group.resume(LONG).done
    assert files(lost) == left
    said = group.reclaim(LONG)
    assert "is not in the cluster" in said[nodes.ids[lost]] and f"ebb gc --disk-dir {scratch(lost)}/" in said[nodes.ids[lost]], said
    assert all(text == "" for node, text in said.items() if node != nodes.ids[lost]), said
    held("an actor that is restarted on another node is told with the node where its files were left")

    command = shlex.split(said[nodes.ids[lost]].partition("run there: ")[2])
    subprocess.run([COMMAND, *command[1:]], check=True, stdout=subprocess.DEVNULL)
    assert files(lost) == []
    held("the command that was told reclaims them there")
    nodes.add(lost)
    nodes.learn()


def unsupervised(nodes):
    """What software does that passes no more than env_vars on."""
    place = NodeAffinitySchedulingStrategy(nodes.ids[0], soft=False)
    directory = f"{scratch(0)}/plain"
    os.mkdir(directory, 0o700)
    given = env(0, job="bare", target="disk", disk_dir=directory, supervised=False)
    assert set(given) == {"env_vars"}
    actor = ray.remote(max_restarts=1, num_cpus=0)(Trainer).options(runtime_env=given, scheduling_strategy=place).remote(0)
    beside = ray.remote(num_cpus=0)(AsyncTrainer).options(
        runtime_env=env(0, job="bare", role="critic", target="disk", disk_dir=directory, supervised=False), scheduling_strategy=place).remote(0)
    group = ebb.ray.ActorGroup([actor, beside])
    assert group.pause(LONG).done
    dead = [name for name in files(0, "/plain") if "/actor_" in name]
    alive = [name for name in files(0, "/plain") if "/critic_" in name]
    assert dead and alive, files(0, "/plain")
    kill(group, 0)
    assert set(dead) <= set(files(0, "/plain"))
    group.bring_back(LONG)
    report = whole(group)
    assert [r.restarts for r in report.ranks] == [1, 0], report
    assert group.pause(LONG).done
    assert not set(dead) & set(files(0, "/plain")) and set(alive) <= set(files(0, "/plain")), (dead, alive, files(0, "/plain"))
    assert group.resume(LONG).done
    held("without a supervisor a restarted rank removes what its dead process left, and nothing of the living")

    stop = f"{WORK}/stop"
    ray.get(beside.begin.remote(stop))
    until("steps", lambda: ray.get(beside.count.remote()) > 2)
    for _ in range(3):
        with group.paused(LONG) as report:
            count = ray.get(beside.count.remote())
            assert report.ranks[1].state == "paused"
            assert ray.get(beside.count.remote()) == count
        until("more steps", lambda count=count: ray.get(beside.count.remote()) > count)
    with open(stop, "w", encoding="ascii"):
        pass
    assert ray.get(beside.end.remote()) > 5
    held("an async actor is paused between its steps, while it answers other calls")

    assert group.pause(LONG).done
    ray.kill(actor)
    ray.kill(beside)
    until("their end", lambda: group.status(LONG).of("dead") == [0, 1])
    for answer in group._last.values():  # Ray may say so while a process still ends
        until("its process to end", lambda pid=answer.pid: not os.path.exists(f"/proc/{pid}"))
    assert files(0, "/plain")
    said = group.reclaim(LONG)
    assert "removed" in said[nodes.ids[0]] and files(0, "/plain") == [], (said, files(0, "/plain"))
    held("ActorGroup.reclaim removes what actors left that nobody restarts")
    report = group.pause(LONG)
    assert report.of("dead") == [0, 1] and not report.done and not group.bring_back(LONG).done, report
    held("a group whose actors are all dead says so")


def bad_input(nodes, first, twin, refused):
    """first: a group whose rank 0 holds its directory. twin: a second process of that rank. refused: one whose disk directory is not there."""
    plain = ray.remote(num_cpus=0)(Plain).remote()
    report = ebb.ray.ActorGroup([plain]).pause(LONG)
    assert report.of("refused") == [0] and "ebb.ray.Parkable" in str(report), report
    assert ray.get(plain.hello.remote()) == "hello"
    for wrong in ([], [Trainer], [None], "ab"):
        try:
            ebb.ray.ActorGroup(wrong)
            raise AssertionError(wrong)
        except ebb.InvalidArgument as err:
            assert "group" in str(err), err
    for timeout in (-1, None, "soon", float("nan")):
        try:
            first.status(timeout)
            raise AssertionError(timeout)
        except ebb.InvalidArgument as err:
            assert "timeout" in str(err), err
    report = first.pause(LONG, tags="nobody")
    assert not report.done and all(isinstance(r.error, ebb.UnknownTag) and r.state == "active" for r in report.ranks), report
    held("actors without the methods, groups of nothing, wrong deadlines and unknown tags are refused with their names")

    for actor, reason in ((refused, "/nowhere does not exist"), (twin, "in use by a live supervisor")):
        report = ebb.ray.ActorGroup([actor]).status(LONG)
        assert report.of("failed") == [0] and isinstance(report.ranks[0].error, ebb.NotLoaded), report
        assert reason in str(report) and "refused to start" in str(report), report
        assert ray.get(actor.pause_fails.remote())[0] == "NotLoaded"
    held("an actor that ebb exec refuses on its node tells why: a disk directory that is not there, a rank that another process has")


def example(nodes):
    """The example of docs/clusters/ray.md, with a trainer of these tests, no GPU for Ray to count, and a directory that is there."""
    with open(os.environ["RAY_TEST_PAGE"], encoding="utf-8") as page:
        code = page.read().partition("```python\n")[2].partition("```")[0]
    directory = f"{scratch(0)}/page"
    os.mkdir(directory, 0o700)
    place = f", device='soft', python={sys.executable!r}, chunk_mb=16, env_vars={{'EBB_RUNTIME_DIR': {SOCKETS!r}}}"
    for text, put in (("num_gpus=1", "num_cpus=0"), ("ray.init()\n", ""), ('disk_dir="/nvme/ebb"', f"disk_dir={directory!r}, role='page'{place}")):
        assert code.count(text) == 1, (text, code)
        code = code.replace(text, put)
    seen = []
    names = {"RANKS": 2, "STEPS": 2, "make_trainer": Stepping, "generate": lambda: seen.append(len(files(0, "/page")))}
    exec(compile(code, "docs/clusters/ray.md", "exec"), names)
    assert len(seen) == 2 and all(seen), seen
    assert names["group"].status(LONG).done
    for actor in names["trainers"]:
        ray.kill(actor)
    until("the files to go", lambda: not files(0, "/page"))
    held("the example of the page runs")


def left_over():
    """Nothing may be left but this process and those above it."""
    mine = {1, os.getpid(), os.getppid()}

    def others():
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in mine:
                with contextlib.suppress(OSError):
                    with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                        text = stat.read()
                    if text.rpartition(")")[2].split()[0] != "Z":
                        found.append(text[:60])
        return found

    until("all processes to end", lambda: not others())
    for number in range(RANKS):
        assert files(number) == []
        ranks = [os.path.join(at, name) for at, folders, _ in os.walk(scratch(number)) for name in folders if "_rank" in name]
        assert ranks == [], ranks
    sockets = [name for _, _, names in os.walk(SOCKETS) for name in names]
    assert sockets == [], sockets
    stores = [name for name in os.listdir("/dev/shm") if not name.startswith("softgpu-")]
    assert stores == [], stores
    held("nothing is left: no process, no file, no socket")


def main():
    faulthandler.dump_traceback_later(600, exit=True)
    nodes = Nodes()
    held(f"a cluster of {RANKS} raylets, Ray {ray.__version__}")
    assert ebb.ray.job_name().endswith("-" + ray.get_runtime_context().get_job_id())
    group = placement_group([{"CPU": 1}] * RANKS, strategy="SPREAD")
    ray.get(group.ready())

    def start(cls, options):
        return [
            ray.remote(num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank), **options(rank))(cls).remote(rank)
            for rank in range(RANKS)]

    plain = start(Trainer, lambda rank: {"runtime_env": {"env_vars": {"LD_LIBRARY_PATH": f"{DIST}/lib/softgpu"}}})
    losses = [step(plain, number) for number in range(STEPS)]
    for actor in plain:
        ray.kill(actor)
    held("a run without ebb")

    actors = start(Trainer, lambda rank: {"max_restarts": 5, "runtime_env": env(rank)})
    whole(ebb.ray.ActorGroup(actors))
    # A second process of rank 0, which nobody kills, waits for its directory in vain.
    place = NodeAffinitySchedulingStrategy(ebb.ray.ActorGroup(actors).status(LONG).ranks[0].node, soft=False)
    lazy = ray.remote(num_cpus=0, scheduling_strategy=place)(Lazy)
    twin = lazy.options(runtime_env=env(0)).remote()
    refused = lazy.options(runtime_env=env(7, world_size=8, disk_dir="/nowhere/ebb")).remote()
    whole_group, where = training(nodes, actors, losses)
    node_dies(nodes, whole_group, actors, where)
    unsupervised(nodes)
    example(nodes)
    bad_input(nodes, whole_group, twin, refused)
    for actor in [*actors, twin, refused]:
        ray.kill(actor)
    until("the files to go", lambda: not any(files(n) for n in range(RANKS)))
    remove_placement_group(group)
    ray.shutdown()
    nodes.cluster.shutdown()
    left_over()
    print("ray_job: ok", flush=True)


main()
