"""ebb.ray without Ray: what a rank is started with, as a shell starts it for Ray; what an actor calls; reports. The
real thing is in test/clusters."""

import asyncio
import contextlib
import faulthandler
import io
import logging
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import types
import unittest
from unittest import mock

import ebb
import ebb.ray
from support import DISK, PRELUDE, ROOT, Memory, MiB, backup_files

COMMAND = str(ROOT / "dist/bin/ebb")
DEFAULTS = dict(job="job", target="disk", disk_dir="/nowhere/ebb", device="soft", chunk_mb=16)

# Seconds: many times what any test takes on a busy machine.
HANGS = 600


class Hung(AssertionError):
    """A test did not go on; it says where."""


@contextlib.contextmanager
def watched(seconds=HANGS):
    """What hangs in the body fails with the stacks of all tasks and threads."""

    def hung(_number, frame):
        stacks = io.StringIO()
        with contextlib.suppress(RuntimeError):  # no loop runs
            for task in asyncio.all_tasks():
                task.print_stack(file=stacks)
        for thread, top in sys._current_frames().items():
            print(f"Thread {thread}:", file=stacks)
            traceback.print_stack(frame if thread == threading.get_ident() else top, file=stacks)
        raise Hung(f"hangs:\n{stacks.getvalue()}")

    before = signal.signal(signal.SIGALRM, hung)
    faulthandler.dump_traceback_later(seconds + 60, exit=True)  # where the main thread hangs in C, or in cleaning up
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


class Watched(unittest.TestCase):
    """Tests that fail where they would hang."""

    def run(self, result=None):
        with watched():
            return super().run(result)


class Watchdog(unittest.TestCase):
    def test_what_hangs_fails_and_is_named(self):
        async def waits_for_a_lock_that_nobody_releases():
            lock = asyncio.Lock()
            await lock.acquire()
            await lock.acquire()

        with self.assertRaisesRegex(Hung, "waits_for_a_lock_that_nobody_releases"), watched(0.01):
            asyncio.run(waits_for_a_lock_that_nobody_releases())


def variables(**changed):
    return ebb.ray.runtime_env(**{**DEFAULTS, "supervised": False, **changed})["env_vars"]


class RuntimeEnv(Watched):
    def setUp(self):
        logging.disable(logging.WARNING)  # that /nowhere is not on this node
        self.addCleanup(logging.disable, logging.NOTSET)

    def test_what_may_be_wrong_on_another_node_is_only_told(self):
        logging.disable(logging.NOTSET)
        with self.assertLogs("ebb.ray") as logged:
            variables(rank=0)
        self.assertIn("/nowhere does not exist", logged.output[0])

    def refused(self, text, error=ebb.InvalidArgument, **changed):
        for supervised in (True, False):
            with self.subTest(supervised=supervised), self.assertRaisesRegex(error, text):
                ebb.ray.runtime_env(**{**DEFAULTS, "rank": 0, "supervised": supervised, **changed})

    def test_ranks_roles_cells_and_jobs_have_directories_of_their_own(self):
        who = [dict(), dict(rank=1), dict(role="critic"), dict(cell=1), dict(job="other")]
        found = {variables(**{"rank": 0, **one})["TMS_DISK_BACKUP_DIR"] for one in who}
        self.assertEqual(len(found), len(who))
        self.assertIn("/nowhere/ebb/job/actor_cell0_rank0", found)

    def test_everything_is_text(self):
        env = variables(rank=3, world_size=4, env_vars={"MINE": "1"})
        self.assertTrue(all(isinstance(part, str) for item in env.items() for part in item))
        self.assertEqual((env["RANK"], env["WORLD_SIZE"], env["MINE"]), ("3", "4", "1"))
        self.assertEqual(env["TMS_DISK_BACKUP_CHUNK_MB"], "16")
        self.assertEqual(env["TMS_INIT_ENABLE_DISK_BACKUP"], "1")

    def test_what_the_node_preloads_is_kept(self):
        library = str(ROOT / "dist/lib/torch_memory_saver/libebb.so")
        self.assertEqual(variables(rank=0)["LD_PRELOAD"], library + ":${LD_PRELOAD}")
        self.assertEqual(variables(rank=0, env_vars={"LD_PRELOAD": "/opt/jemalloc.so"})["LD_PRELOAD"], library + ":/opt/jemalloc.so")

    def test_nothing_of_this_process_is_passed_on(self):
        before = variables(rank=0)
        changed = {"EBB_OFFLOAD_TRAIN_TARGET": "nonsense", "EBB_RUN": "1-1", "RANK": "x", "SLURM_PROCID": "9", "SLURM_STEP_ID": "0"}
        os.environ.update(changed)
        self.addCleanup(lambda: [os.environ.pop(name) for name in changed])
        self.assertEqual(variables(rank=0), before)

    def test_a_supervised_worker_has_no_environment_of_a_rank_before_ebb_exec(self):
        env = ebb.ray.runtime_env(**DEFAULTS, rank=2)
        self.assertEqual(set(env), {"env_vars", "py_executable"})
        self.assertEqual(env["env_vars"], {"RANK": "2"})
        self.assertIn(f"{COMMAND} exec ", env["py_executable"])

    def test_without_a_supervisor_the_target_is_that_of_env_vars_or_cpu(self):
        self.assertNotIn("TMS_DISK_BACKUP_DIR", variables(rank=0, target=None))
        given = {"EBB_OFFLOAD_TRAIN_TARGET": "disk", "EBB_OFFLOAD_TRAIN_DISK_DIR": "/nowhere/given"}
        self.assertEqual(variables(rank=0, target=None, disk_dir=None, env_vars=given)["TMS_DISK_BACKUP_DIR"], "/nowhere/given/job/actor_cell0_rank0")
        self.assertNotIn("TMS_DISK_BACKUP_DIR", variables(rank=0, target="cpu", env_vars=given))

    def test_bad_input(self):
        self.refused("rank is a whole number from 0 on, not -1", rank=-1)
        self.refused("rank is a whole number", rank="0")
        self.refused("rank is a whole number", rank=True)
        self.refused("rank 4 is not below world_size 4", rank=4, world_size=4)
        self.refused("world_size is a whole number from 1 on", world_size=0)
        self.refused("--rank", rank=1 << 40)
        self.refused("cell is a whole number", cell=-1)
        self.refused("--role .*must not be empty", role="")
        self.refused("--role .*only letters", role="a/b")
        self.refused("--role .*underscore", role="a__b")
        self.refused("--job .*only letters", job="a b")
        self.refused("--job .*must not begin with a dot", job="../x")
        self.refused("target.*must be one of cpu, disk, auto", target="nvme")
        self.refused("disk-chunk-mb.*from 1", chunk_mb=0)
        self.refused("must name a directory", disk_dir=[])
        self.refused("not an absolute path", disk_dir="here")
        self.refused("--device", device="tpu")
        self.refused("unknown flag: --nope", flags=["--nope"])
        self.refused("a list of flags", flags="--discard")
        self.refused("env_vars are texts", env_vars={"A": 1})
        self.refused("no text", target=3)
        self.refused("is no program", error=ebb.NotLoaded, command="/nowhere/ebb")
        with self.assertRaises(TypeError):
            ebb.ray.runtime_env(job="job")  # which rank?
        with self.assertRaisesRegex(ebb.InvalidArgument, "give disk_dir="):
            variables(rank=0, disk_dir=None)
        with self.assertRaisesRegex(ebb.InvalidArgument, "give disk_dir="):
            variables(rank=0, disk_dir=None, target=None, env_vars={"EBB_OFFLOAD_TRAIN_TARGET": "disk"})
        with self.assertRaisesRegex(ebb.InvalidArgument, r"a \$ in it"):
            variables(rank=0, disk_dir="/nowhere/$x")

    def test_without_ray_and_without_the_command(self):
        program = "import sys; sys.modules['ray'] = None; import ebb, ebb.ray"
        with tempfile.TemporaryDirectory(dir=ROOT / "build") as alone:
            shutil.copytree(ROOT / "python/ebb", os.path.join(alone, "deep/site/ebb"), ignore=shutil.ignore_patterns("__pycache__", "bin", "lib"))
            for call, text in (
                ("ebb.ray.runtime_env(rank=0, job='j')", "neither in this installation of the Python package nor in PATH"),
                ("ebb.ray.runtime_env(rank=0)", "package ray is not there: install it"),
                ("ebb.ray.ActorGroup([1])", "package ray is not there: install it"),
            ):
                done = subprocess.run(
                    [sys.executable, "-c", f"{program}\ntry: {call}\nexcept ebb.NotLoaded as err: print(err)"],
                    env={"PATH": "/nowhere", "PYTHONPATH": os.path.join(alone, "deep/site")}, stdout=subprocess.PIPE, text=True, check=True)
                self.assertIn(text, done.stdout)


class Started(Watched):
    """Processes that are started as Ray does it: bash puts the arguments of the worker behind py_executable."""

    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="ray-", dir=DISK)
        self.addCleanup(shutil.rmtree, self.work)
        self.disk, self.sockets = os.path.join(self.work, "disk"), os.path.join(self.work, "s")
        os.mkdir(self.sockets, 0o700)
        self.device = {"SOFTGPU_NODE": f"ray-{os.getpid()}", "SOFTGPU_MEM_MB": "128", "EBB_RUNTIME_DIR": self.sockets}

    def start(self, program, prelude=PRELUDE, node=(), **changed):
        """node: more variables of the node's workers."""
        options = {**DEFAULTS, "rank": 0, "disk_dir": self.disk, **changed}
        given = ebb.ray.runtime_env(**options)
        script = os.path.join(self.work, f"worker {len(os.listdir(self.work))}.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(prelude + textwrap.dedent(program))
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"], "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8", **self.device, **dict(node)}
        for name, value in given["env_vars"].items():
            env[name] = value.replace("${LD_PRELOAD}", "")  # as Ray does it
        quoted = "'" + script + "'"
        process = subprocess.Popen(
            ["bash", "-c", f"exec {given.get('py_executable', sys.executable)} {quoted} --of-ray 'two words'"],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdin.close)
        return process

    def said(self, process):
        line = process.stdout.readline().strip()
        self.assertTrue(line, process.stderr.read() if process.poll() is not None else "nothing was said")
        return line

    HOLD = """
        import ebb.ray
        address = malloc(3 * MiB)
        Pattern("x", 3 * MiB).write(address)
        ebb.ray.check()
        done = ebb.ray.pause_here()
        print(os.getpid(), done.bytes_paused, done.error, *sys.argv[1:], flush=True)
        sys.stdin.readline()
        assert ebb.ray.resume_here().error is None
        Pattern("x", 3 * MiB).check(address)
        print("resumed", flush=True)
        sys.stdin.readline()
    """

    def test_a_supervised_rank_that_is_killed_leaves_nothing(self):
        process = self.start(self.HOLD)
        pid, paused, *rest = self.said(process).split(maxsplit=3)
        self.assertEqual((int(paused), rest), (3 * MiB, ["None", "--of-ray two words"]))
        self.assertNotEqual(int(pid), process.pid, "the rank has no supervisor")
        self.assertTrue(backup_files(self.disk))
        os.kill(int(pid), signal.SIGKILL)
        self.assertEqual(process.wait(), 128 + signal.SIGKILL)
        self.assertEqual(backup_files(self.disk), {})

    TARGET = """
        import os
        print(os.environ.get("TMS_DISK_BACKUP_DIR", "no disk"), flush=True)
    """

    def test_the_target_is_that_of_the_nodes_environment_where_none_is_given(self):
        node = {"EBB_OFFLOAD_TRAIN_TARGET": "disk", "EBB_OFFLOAD_TRAIN_DISK_DIR": self.disk}
        for of_node, target, expected in (
            (node, None, f"{self.disk}/job/actor_cell0_rank0"),
            (node, "cpu", "no disk"),
            ({}, None, "no disk"),
        ):
            with self.subTest(of_node=of_node, target=target):
                process = self.start(self.TARGET, node=of_node, target=target, disk_dir=None)
                self.assertEqual(self.said(process), expected)
                self.assertEqual(process.wait(), 0)

    def test_the_interpreters_path_may_have_blanks_and_dollars(self):
        odd = os.path.join(self.work, "of $HOME (1)")
        os.mkdir(odd)
        os.symlink(os.path.realpath(sys.executable), os.path.join(odd, "python"))
        for disk_dir in (self.disk, "/nowhere/ebb"):  # with ebb, and refused
            with self.subTest(disk_dir=disk_dir), mock.patch.object(sys, "executable", os.path.join(odd, "python")):
                process = self.start("import sys; print(sys.executable)", prelude="", disk_dir=disk_dir)
                self.assertEqual(self.said(process), os.path.join(odd, "python"))
                self.assertEqual(process.wait(), 0)

    def test_a_second_process_of_a_rank_waits_for_the_first_ones_end(self):
        first = self.start(self.HOLD)
        self.said(first)
        second = self.start(self.HOLD)
        mine = set(backup_files(self.disk))
        first.stdin.write("\n")
        first.stdin.flush()
        self.assertEqual(self.said(first), "resumed")
        self.assertIsNone(second.poll())
        first.stdin.write("\n")
        first.stdin.flush()
        self.assertEqual(first.wait(), 0)
        self.assertEqual(self.said(second).split()[1], str(3 * MiB))
        self.assertFalse(mine & set(backup_files(self.disk)))

    def test_a_worker_that_ebb_refuses_runs_and_tells_why(self):
        process = self.start(
            """
            import os, sys
            import ebb, ebb.ray
            try:
                ebb.ray.check()
            except ebb.NotLoaded as err:
                print(err)
            answer = ebb.ray.pause_here()
            print(type(answer.error).__name__, "LD_PRELOAD" in os.environ, sys.argv[1:], flush=True)
            """,
            prelude="", disk_dir="/nowhere/ebb")
        self.assertRegex(self.said(process), "ebb exec refused to start this worker on .*: disk directory /nowhere/ebb cannot be made: /nowhere does not exist")
        self.assertEqual(self.said(process), "NotLoaded False ['--of-ray', 'two words']")
        self.assertEqual(process.wait(), 0)

    def test_without_a_supervisor_the_next_process_of_the_node_removes_what_a_killed_one_left(self):
        killed, beside = self.start(self.HOLD, supervised=False), self.start(self.HOLD, supervised=False, role="critic")
        pid = int(self.said(killed).split()[0])
        self.said(beside)
        self.assertEqual(pid, killed.pid)
        os.kill(pid, signal.SIGKILL)
        killed.wait()
        dead = {name for name in backup_files(self.disk) if f"-{pid}-" in name}
        self.assertTrue(dead)
        again = self.start(self.HOLD, supervised=False)
        self.said(again)
        left = set(backup_files(self.disk))
        self.assertFalse(dead & left)
        self.assertTrue(any(f"-{beside.pid}-" in name for name in left), "the files of a live rank were removed")
        for process in (beside, again):
            process.communicate("\n\n")
            self.assertEqual(process.returncode, 0)
        self.assertEqual(backup_files(self.disk), {})


class InTheActor(Watched, Memory):
    def test_pause_and_resume_can_be_repeated(self):
        address, pattern = self.allocate(2 * MiB, backup="disk")
        first, again = ebb.ray.pause_here(), ebb.ray.pause_here()
        self.assertEqual((first.bytes_active, first.bytes_paused, first.error), (0, 2 * MiB, None))
        self.assertEqual((first.result.bytes, again.result.bytes, again.bytes_paused), (2 * MiB, 0, 2 * MiB))
        self.assertEqual((first.pid, first.process), (os.getpid(), again.process))
        for _ in range(2):
            back = ebb.ray.resume_here()
            self.assertEqual((back.bytes_active, back.bytes_paused, back.error), (2 * MiB, 0, None))
        pattern.check(address)

    def test_what_nobody_waits_for_any_more_is_not_done(self):
        self.allocate(MiB, backup="disk")
        late = ebb.ray.pause_here(expires=time.time() - 5)
        self.assertIsInstance(late.error, ebb.Timeout)
        self.assertIn("nothing was done", str(late.error))
        self.assertEqual((late.result, late.bytes_active, late.bytes_paused), (None, MiB, 0))

    def test_a_pause_that_first_removed_files_for_too_long_is_not_done(self):
        self.allocate(MiB, backup="disk")
        clock = types.SimpleNamespace(time=lambda: clock.now, now=100.0)

        def slowly():
            clock.now = 200.0

        with mock.patch.multiple("ebb.ray", time=clock, reclaim_here=slowly):
            late = ebb.ray.pause_here(expires=150.0)
        self.assertEqual(clock.now, 200.0)
        self.assertIsInstance(late.error, ebb.Timeout)
        self.assertEqual((late.result, late.bytes_active, late.bytes_paused), (None, MiB, 0))

    def test_what_could_not_be_asked_for_is_not_taken_for_nothing(self):
        self.allocate(MiB, backup="disk")
        actor = ebb.ray.AsyncParkable()

        async def run():
            with mock.patch("ebb._memory.status", side_effect=ebb.Error("no status")):
                unsure = await actor.ebb_pause()
            self.assertEqual((unsure.bytes_active, unsure.bytes_paused, str(unsure.error)), (None, None, "no status"))
            self.assertEqual(ebb.ray._state(unsure), "unknown")
            self.assertTrue(actor.ebb_resting().locked(), "the actor may use paused memory")
            self.assertEqual((await actor.ebb_resume()).bytes_active, MiB)
            self.assertFalse(actor.ebb_resting().locked())

        asyncio.run(run())

    def test_an_error_is_in_the_answer_and_can_be_sent(self):
        self.allocate(MiB, backup="disk")
        answer = pickle.loads(pickle.dumps(ebb.ray.pause_here("nobody")))
        self.assertIsInstance(answer.error, ebb.UnknownTag)
        self.assertEqual((answer.error.code, answer.bytes_active), (4, MiB))

    def test_an_async_actor_is_paused_between_its_steps(self):
        address, pattern = self.allocate(MiB, backup="disk")
        actor = ebb.ray.AsyncParkable()
        steps = []

        async def step(begun, go_on):
            async with actor.ebb_resting():
                begun.set()
                await go_on.wait()
                steps.append(ebb.status()["bytes_active"])
                pattern.check(address)

        async def run():
            begun, go_on = asyncio.Event(), asyncio.Event()
            training = asyncio.ensure_future(step(begun, go_on))
            await begun.wait()
            late = await actor.ebb_pause(expires=time.time() + 0.05)
            self.assertIsInstance(late.error, ebb.Timeout)
            pausing = asyncio.ensure_future(actor.ebb_pause())
            go_on.set()
            await training
            self.assertEqual((await pausing).bytes_paused, MiB)
            self.assertEqual((await actor.ebb_pause()).bytes_paused, MiB)
            waiting = asyncio.ensure_future(step(asyncio.Event(), go_on))
            await asyncio.sleep(0)
            self.assertEqual((await actor.ebb_status()).bytes_paused, MiB)
            self.assertEqual(len(steps), 1, "a step used paused memory")
            back = [await actor.ebb_resume() for _ in range(2)]
            self.assertEqual([answer.bytes_active for answer in back], [MiB, MiB])
            await waiting

        asyncio.run(run())
        self.assertEqual(steps, [MiB, MiB])


class Reports(Watched):
    def rank(self, number, outcome="done", state="paused", error=None, left_on=()):
        result = ebb.Result(allocations=1, bytes=10, seconds=0.5) if outcome == "done" else None
        return ebb.ray.RankReport(number, outcome, state, "n", result, error, 0, left_on)

    def test_done_is_done_on_every_rank(self):
        good = ebb.ray.GroupReport("pause", (self.rank(0), self.rank(1)), 1.0)
        self.assertTrue(good.done)
        self.assertEqual((good.bytes, str(good)), (20, "pause done on 2 of 2 ranks in 1.00 s"))
        for outcome in ("failed", "late", "dead", "refused"):
            self.assertFalse(good._replace(ranks=(self.rank(0), self.rank(1, outcome))).done)
        self.assertFalse(good._replace(ranks=()).done)

    def test_what_is_not_done_is_named_with_the_command_for_the_others(self):
        failed = self.rank(1, "failed", "active", ebb.NoSpace("no space left\nin /nvme"))
        report = ebb.ray.GroupReport("pause", (self.rank(0), failed, self.rank(2)), 1.0)
        self.assertEqual(str(report), textwrap.dedent("""\
            pause NOT done: done on 2 of 3 ranks in 1.00 s
            rank 1: failed, memory active: NoSpace: no space left in /nvme
            to bring the others back: group.bring_back(timeout=SECONDS)"""))
        back = ebb.ray.GroupReport("bring back", (self.rank(0, state="active"),), 0.5)
        error = pickle.loads(pickle.dumps(ebb.ray.GroupError(report, back)))
        self.assertEqual(error.report.of("failed"), [1])
        self.assertTrue(str(error).endswith("bring back done on 1 of 1 ranks in 0.50 s"), error)
        self.assertNotIn("SECONDS", str(error))


# Stand-ins for exceptions of Ray.


class RayActorError(Exception):
    pass


class ActorDiedError(RayActorError):
    """Its process ended."""


class ActorUnavailableError(RayActorError):
    """It cannot be reached at present; the task may have been run."""


class Actor:
    """A handle of an actor: each call takes the next of what it shall come to, the last one for ever."""

    def __init__(self, *comes):
        self.comes, self.asked = list(comes), []
        for name in ("ebb_pause", "ebb_resume", "ebb_status"):
            setattr(self, name, types.SimpleNamespace(remote=lambda name=name, **_: self.call(name)))

    def call(self, name):
        self.asked.append(name)
        return (self, len(self.asked), self.comes.pop(0) if len(self.comes) > 1 else self.comes[0])


def get(ref):
    if isinstance(ref[2], Exception):
        raise ref[2]
    return ref[2]


def stand_in():
    """As much of ray as a group of actors uses, without processes."""
    ray = types.ModuleType("ray")
    ray.actor = types.SimpleNamespace(ActorHandle=Actor)
    ray.exceptions = types.SimpleNamespace(
        RayActorError=RayActorError, ActorDiedError=ActorDiedError, ActorUnavailableError=ActorUnavailableError, RayTaskError=type("RayTaskError", (Exception,), {}))
    ray.get = get
    ray.wait = lambda refs, num_returns, timeout: (refs, [])
    return ray


class Groups(Watched):
    """What a group makes of what Ray says of its actors."""

    PAUSED = ebb.ray.Answer("1-1", 1, "n", 0, 10, ("/nvme/a b",), ebb.Result(allocations=1, bytes=10, seconds=0.5))
    BACK = PAUSED._replace(bytes_active=10, bytes_paused=0)

    def group(self, *actors):
        with mock.patch.dict(sys.modules, ray=stand_in()):
            return ebb.ray.ActorGroup(actors)

    def test_a_rank_that_cannot_be_reached_is_not_taken_for_dead(self):
        group = self.group(Actor(self.PAUSED), Actor(ActorUnavailableError("connection reset")), Actor(ActorDiedError("killed")))
        report = group.pause(60)
        self.assertFalse(report.done)
        self.assertEqual([(r.outcome, r.state) for r in report.ranks], [("done", "paused"), ("unavailable", "unknown"), ("dead", "lost")])

    def test_who_cannot_be_reached_is_asked_again_until_it_has_its_memory_back(self):
        away = ActorUnavailableError("connection reset")
        well, hidden, dead = Actor(self.BACK), Actor(away, away, self.BACK), Actor(ActorDiedError("killed"))
        back = self.group(well, hidden, dead).bring_back(60)
        self.assertTrue(back.done, back)
        self.assertEqual([(r.rank, r.state) for r in back.ranks], [(0, "active"), (1, "active")])
        self.assertEqual([len(actor.asked) for actor in (well, hidden, dead)], [1, 3, 1])

    def test_the_others_are_not_back_while_one_cannot_be_reached(self):
        away = Actor(ActorUnavailableError("connection reset"))
        with self.assertRaises(ebb.ray.GroupError) as caught, self.group(Actor(self.PAUSED, self.BACK), away).paused(0.01):
            self.fail("a pause that was not done")
        back = caught.exception.brought_back
        self.assertFalse(back.done)
        self.assertEqual([r.outcome for r in back.ranks], ["done", "unavailable"])
        self.assertIn("rank 1: unavailable, memory unknown", str(caught.exception))

    def test_who_cannot_be_reached_may_turn_out_to_be_dead(self):
        back = self.group(Actor(self.BACK), Actor(ActorUnavailableError("connection reset"), ActorDiedError("killed"))).bring_back(60)
        self.assertTrue(back.done, back)
        self.assertEqual([r.rank for r in back.ranks], [0])

    def test_the_command_for_a_node_can_be_pasted(self):
        self.assertEqual(shlex.split(ebb.ray._gc(["/nvme/a b", "/x"])), ["ebb", "gc", "--disk-dir", "/nvme/a b,/x"])


if __name__ == "__main__":
    unittest.main()
