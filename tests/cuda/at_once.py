"""Runs the bundled GPU tests by many processes at a time, on all GPUs: at_once.py [--seconds N] [--out FILE] [REGEX]

A process has a few cores of its own and a few tests, one after the other, or a single one that takes long. Tests that measure free memory,
or take all of it, have a GPU for themselves; those of several GPUs follow the others. `--seconds` is how long a process may take, and
`--limit` how long all may: what has not begun by then is counted as not run. `--out` names a file for a line per test: how it ended, the
seconds of its process, its name. Needs nothing beside Python and taskset."""
import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SEVERAL = re.compile(r"^(ranks|ranks_drafts|ranks_adapters|nccl|group)::")
ALONE = re.compile(r"memory|limits|evict|faults|^networks::|^states::")
# A minute or more, most of it on the CPU: they begin first, with more cores.
LONG = re.compile(r"drafts::|^parts::|::lives|^sample::|::texts")
LANES = 13  # on a GPU
TOGETHER = 8  # tests of a process
BAD = ("FAILED", "too long")


class Run:
    def __init__(self, options, names, gpus):
        self.options, self.gpus, self.begin = options, gpus, time.time()
        self.lock = threading.Lock()
        self.processes = [0] * (os.cpu_count() or 1)  # on each core
        self.results = {}
        is_long = lambda name: bool(LONG.search(name))
        several = [name for name in names if SEVERAL.search(name)]
        alone = [name for name in names if ALONE.search(name) and not SEVERAL.search(name)]
        others = [name for name in names if name not in {*several, *alone}]
        long, short = [n for n in others if is_long(n)], [n for n in others if not is_long(n)]
        cut = lambda names, n: [names[i : i + n] for i in range(0, len(names), n)]
        queues = cut(several, 1), cut(alone, TOGETHER), cut(long, 1) + cut(short, TOGETHER)
        self.several, self.alone, self.others = map(collections.deque, queues)

    def tests(self, names, gpu):
        """Runs them, and returns those that are still to be run, because the process ended before."""
        environment = dict(os.environ, EMBERLM_REPOSITORY=os.environ.get("EMBERLM_REPOSITORY", str(HERE)), EMBERLM_TESTS=",".join(names))
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
        count = min(len(self.processes), 4 if len(names) == 1 else 2)
        with self.lock:
            cores = sorted(range(len(self.processes)), key=lambda core: self.processes[core])[:count]
            for core in cores:
                self.processes[core] += 1
        begin, rest = time.time(), []
        left = min(self.options.seconds, self.begin + self.options.limit - begin)
        states, output = dict.fromkeys(names, "not run"), ""
        if left > 0:
            with tempfile.NamedTemporaryFile("r") as log:
                command = ["taskset", "-c", ",".join(map(str, cores)), self.options.program, "--logfile", log.name]
                try:
                    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=left)
                    output, otherwise = done.stdout.decode(errors="replace"), "FAILED"
                except subprocess.TimeoutExpired as e:
                    output, otherwise = (e.stdout or b"").decode(errors="replace"), "too long"
                ends = dict(re.findall(r"^test (\S+) +\.\.\. (\w+)", log.read(), re.M))
            # The first that did not end is the one; those behind it have not begun.
            for name in names:
                states[name] = ends.get(name, otherwise)
                if name not in ends:
                    break
            rest = [name for name, state in states.items() if state == "not run"]
            states = {name: state for name, state in states.items() if name not in rest}
        with self.lock:
            for core in cores:
                self.processes[core] -= 1
            seconds = time.time() - begin
            for name, state in states.items():
                self.results[name] = (state, seconds, output)
                if state in BAD:
                    print(f"{state}: {name}", flush=True)
        return rest

    def lane(self, queue, gpu, wait_for=None):
        if wait_for is not None:
            wait_for.join()
        while True:
            with self.lock:
                if not queue:
                    return
                names = queue.popleft()
            rest = self.tests(names, gpu)
            if rest:
                with self.lock:
                    queue.append(rest)

    def all(self):
        gpus = list(range(self.gpus)) or [None]
        # The last GPU is for those that want one for themselves, and then for the others, too.
        own = threading.Thread(target=self.lane, args=(self.alone, gpus[-1]))
        lanes = [threading.Thread(target=self.lane, args=(self.others, gpu, own if gpu == gpus[-1] else None))
                 for gpu in gpus for _ in range(LANES)]
        for thread in [own, *lanes]:
            thread.start()
        for thread in [own, *lanes]:
            thread.join()
        lanes = [threading.Thread(target=self.lane, args=(self.several, None)) for _ in range(9)]
        for thread in lanes:
            thread.start()
        for thread in lanes:
            thread.join()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="?", default=".", metavar="REGEX")
    parser.add_argument("--program", default=str(HERE / "test-cuda"))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--without", metavar="REGEX")
    parser.add_argument("--out")
    options = parser.parse_args()
    listed = subprocess.run([options.program, "--list"], capture_output=True, text=True, check=True).stdout
    names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
    names = [name for name in names if re.search(options.names, name)]
    if options.without:
        names = [name for name in names if not re.search(options.without, name)]
    if not names:
        sys.exit("no test has such a name")
    try:
        gpus = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())
    except FileNotFoundError:
        gpus = 0
    run = Run(options, names, gpus)
    run.all()
    states = collections.Counter(state for state, _, _ in run.results.values())
    print(f"{len(names)} tests in {time.time() - run.begin:.0f} s:", ", ".join(f"{n} {state}" for state, n in states.items()))
    if options.out:
        lines = [f"{state}\t{seconds:.1f}\t{name}\n" for name, (state, seconds, _) in sorted(run.results.items())]
        Path(options.out).write_text("".join(lines))
    outputs = collections.defaultdict(list)
    for name, (state, _, output) in run.results.items():
        if state in BAD:
            outputs[output].append(name)
    for output, names in outputs.items():
        print(f"== {' '.join(names)}", *output.splitlines()[-15:], sep="\n")
    sys.exit(any(state not in ("ok", "ignored") for state in states))


if __name__ == "__main__":
    main()
