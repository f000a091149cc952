"""Builds the workspace's test programs and runs them, several at a time."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

# An interrupt ends this at once, and the programs too, as they are in the foreground.
signal.signal(signal.SIGINT, signal.SIG_DFL)
ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
# Tests wait for more than half of their time.
JOBS = int(os.environ.get("TOMBOLO_JOBS", 2 * os.cpu_count()))
THREADS = os.environ.get("RUST_TEST_THREADS", str(2 * os.cpu_count()))
LIMIT_S = 4 * 3600 if "TOMBOLO_LONG" in os.environ else 1800
# These take longest, so they start first.
LONGEST = [
    "tombolo-cli it",
    "tombolo-nfs-client-tests it",
    "tombolo-conformance it",
    "tombolo-layer-cache it",
    "tombolo-vrpc-tests it",
    "libtombolo it",
    "tombolo-crash-images it",
    "tombolo-layer-write-back it",
    "tombolo-back-local-dir descriptors",
    "tombolo-nfs-client-tests bounded",
]
# These measure rates, so they run when all others have ended.
ALONE = ["tombolo-wan line"]


@dataclass(frozen=True)
class Program:
    """The unit tests of a package, or one of its suites."""

    package: str
    suite: str
    folder: Path
    executable: str

    def __str__(self):
        return f"{self.package} {self.suite}"


@dataclass(frozen=True)
class Outcome:
    """The end of a program, and the time that it took."""

    status: int
    output: str
    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Task:
    """A program or a single test to run, and a function that returns a status and a verdict on its outcome."""

    name: str
    run: Callable[[], Outcome]
    judge: Callable[[Outcome], tuple[int, str]]
    is_single: bool = False


def build(tree, target, options):
    """Builds the test programs that these options of `cargo test` select. Exits with status 3 if they do not compile."""
    command = ["cargo", "test", "--quiet", "--no-run", "--message-format=json-render-diagnostics", *options]
    built = subprocess.run(command, cwd=tree, env={**os.environ, "CARGO_TARGET_DIR": target}, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(3)
    return list(read_programs(built.stdout.splitlines()))


def read_programs(messages):
    """Yields the test programs that messages of Cargo name."""
    for message in map(json.loads, messages):
        if message.get("executable") and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            # A package that has the name of its folder is identified by its version alone.
            identifier = message["package_id"].rpartition("#")[2]
            package = identifier.partition("@")[0] if "@" in identifier else folder.name
            suite = message["target"]["name"] if message["target"]["kind"] == ["test"] else "unit"
            yield Program(package, suite, folder, message["executable"])


def run(command, folder, limit_s=LIMIT_S, **environment):
    """Runs a command, contained. The status is 124 or 137 if it takes longer than `limit_s`."""
    command = ["timeout", "--foreground", "--kill-after=5", str(limit_s), ROOT / "tests/contained", *command]
    begun = time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "RUST_TEST_THREADS": THREADS, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Outcome(child.returncode, text, time.monotonic() - begun, used.ru_utime + used.ru_stime)


def judge_suite(outcome):
    """Judges a program that has to pass."""
    if outcome.status == 0:
        return 0, f"ok, {count_passed(outcome)} passed"
    return 5, f"FAILED, status {outcome.status}"


def count_passed(outcome):
    """Counts the tests that have passed."""
    return sum(map(int, re.findall(r"^test result: ok\. (\d+) passed", outcome.output, re.MULTILINE)))


def suite(programs, tree, target):
    """Returns the tasks of the whole suite, the documentation's tests included."""
    rank = {name: index for index, name in enumerate(LONGEST)}
    programs = sorted(programs, key=lambda program: rank.get(str(program), len(rank)))
    tasks = [Task(str(it), lambda it=it: run([it.executable], it.folder), judge_suite) for it in programs]
    documentation = ["cargo", "test", "--quiet", "--doc", "--workspace"]
    return [*tasks, Task("documentation", lambda: run(documentation, tree, CARGO_TARGET_DIR=str(target)), judge_suite)]


def run_tasks(tasks):
    """Runs tasks, several at a time, prints each as it ends, in the end the slowest and again the failures in short, and returns
    the highest status."""
    begun, worst, times, failures = time.monotonic(), 0, [], []
    for is_alone in (False, True):
        for task, outcome in run_some([task for task in tasks if (task.name in ALONE) == is_alone], 1 if is_alone else JOBS):
            status, verdict = task.judge(outcome)
            if status:
                print(f"\n== {task.name}\n{outcome.output}")
                failures += [f"{task.name}: {verdict}", *shorten(outcome.output)]
            print(f"{outcome.wall_s:7.1f} s {outcome.cpu_s:6.1f} s CPU  {task.name}: {verdict}", flush=True)
            worst = max(worst, status)
            times.append((outcome.wall_s, outcome.cpu_s, task.name))
    print("\nthe slowest:")
    for wall_s, _, name in sorted(times, reverse=True)[:12]:
        print(f"{wall_s:7.1f} s  {name}")
    print(f"{len(times)} runs in {time.monotonic() - begun:.0f} s, {sum(cpu_s for _, cpu_s, _ in times):.0f} s CPU", *failures, sep="\n")
    return worst


def shorten(output):
    """Returns at most ten lines of a failed program's output: where tests panicked, with the first lines of each message."""
    lines = output.splitlines()
    panics = [index for index, line in enumerate(lines) if " panicked at " in line]
    return [f"    {line[:200]}" for index in panics[:5] for line in lines[index : index + 3]] or lines[-3:]


def run_some(tasks, jobs):
    """Yields each task and its outcome as it ends. Runs `jobs` programs at a time; while single tests are pending, two of them
    take the place of one program, as programs run several tests at a time and single tests mostly wait."""
    programs = deque(task for task in tasks if not task.is_single)
    singles = deque(task for task in tasks if task.is_single)
    with ThreadPoolExecutor(2 * jobs) as pool:
        running = {}
        while programs or singles or running:
            count = sum(not task.is_single for task in running.values())
            while programs and count + (len(running) - count + 1) // 2 < jobs and (count < jobs - 1 or not singles):
                task = programs.popleft()
                running[pool.submit(task.run)] = task
                count += 1
            while singles and 2 * count + len(running) - count < 2 * jobs:
                task = singles.popleft()
                running[pool.submit(task.run)] = task
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(ended), ended.result()
