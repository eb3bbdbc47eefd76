"""Runs the parts of the GPU suite (suite_parts.py, suite_bench.py) and writes one JSON. See suite.sh."""

import concurrent.futures
import datetime
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time

PROGRAMS_LIMIT = 570.0  # seconds for everything; a call on a lent machine has ten minutes
# Timings are not meant to be seen in these parts, so that they run side by side, a few programs at a time: a card
# goes round between processes, and many of them are slower than one after the other.
SIDE_BY_SIDE = ("kernels", "verify", "tokens", "sanitizer", "models")
AT_ONCE = 3


class Run:
    """What a program did. `code` is None where it ran out of time, 127 where it is not there."""

    def __init__(self, name, code, output, seconds):
        self.name, self.code, self.output, self.seconds = name, code, output, seconds

    @property
    def ok(self):
        return self.code == 0

    def last_lines(self, count=3):
        return " | ".join(line.strip()[:200] for line in self.output.strip().splitlines()[-count:])


class Suite:
    """Where programs and results lie, and how programs are run within the time. Thread-safe."""

    def __init__(self, directory, out):
        self.bin = os.path.join(directory, "bin")
        self.comoe = os.path.join(self.bin, "comoe")
        self.plugin = os.path.join(directory, "lib", "libcomoe_cuda.so")
        self.directory = directory
        self.out = out
        self.logs = os.path.join(out, "logs")
        self.running = set()  # process groups
        self.end = time.monotonic() + float(os.environ.get("LIMIT", PROGRAMS_LIMIT))
        self.demo = "models/moe-32x4-demo"
        self.fixtures = "tests/fixtures/checkpoints"
        self.threads = str(max(1, (os.cpu_count() or 2) // AT_ONCE))  # for a program that runs beside others
        self.turn = threading.BoundedSemaphore(AT_ONCE)
        os.makedirs(self.logs, exist_ok=True)

    def left(self):
        return self.end - time.monotonic()

    def program(self, name):
        return os.path.join(self.bin, name)

    def has(self, name):
        return os.access(self.program(name), os.X_OK)

    def log(self, name):
        return os.path.join(self.logs, name + ".log")

    def start(self, name, command, env=None):
        """Starts a program whose output goes to log(name), as leader of a process group."""
        with open(self.log(name), "wb") as log:
            process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, start_new_session=True,
                                       env={**os.environ, **(env or {})})
        self.running.add(process)
        return process

    def stop_all(self, *_):
        """For a signal: leaves nothing behind."""
        for process in list(self.running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        os._exit(3)

    def read_log(self, name):
        with open(self.log(name), encoding="utf-8", errors="replace") as log:
            return log.read()

    def run(self, name, command, limit, env=None):
        """Runs a program to its end, or for `limit` seconds, or until the suite's time is up. Waits its turn."""
        with self.turn:
            return self.run_now(name, command, limit, env)

    def run_now(self, name, command, limit, env):
        begin = time.monotonic()
        limit = min(limit, self.left())
        if limit < 1:
            return Run(name, None, "no time was left", 0.0)
        try:
            process = self.start(name, command, env)
        except OSError as error:
            return Run(name, 127, str(error), 0.0)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        self.running.discard(process)
        return Run(name, code, self.read_log(name), time.monotonic() - begin)

    def run_all(self, jobs):
        """Runs (name, command, limit), several at a time; results in their order."""
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda job: self.run(*job), jobs))


class Part:
    """What a part found: checks, which pass or fail, and numbers, which are told."""

    def __init__(self):
        self.checks = []
        self.numbers = {}
        self.state = None  # set for what is neither passed nor failed: "skipped: why", "refused: why"

    def check(self, name, passed, value=None, target=None):
        entry = {"name": name, "passed": bool(passed)}
        if value is not None:
            entry["value"] = round(value, 4) if isinstance(value, float) else value
        if target is not None:
            entry["target"] = target
        self.checks.append(entry)
        return bool(passed)

    def ran(self, run, what=None):
        """A check that a program ended well; says how it ended otherwise."""
        value = None
        if not run.ok:
            ending = "ran out of time" if run.code is None else f"exit {run.code}"
            value = f"{ending}: {run.last_lines()}"
        return self.check(what or run.name, run.ok, value)

    def json(self, seconds):
        failed = [check for check in self.checks if not check["passed"]]
        state = self.state or ("failed" if failed else "passed")
        return {"state": state, "seconds": round(seconds, 1), "checks": self.checks, "numbers": self.numbers}


def machine():
    """The card, the driver, the host."""
    def ask(command):
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            return ""

    def first(path, pattern):
        try:
            with open(path, encoding="utf-8") as file:
                found = re.search(pattern, file.read())
                return found.group(1).strip() if found else ""
        except OSError:
            return ""

    card = ask(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max",
                "--format=csv,noheader"]).splitlines()
    fields = [field.strip() for field in card[0].split(",")] if card else []
    fields += [""] * (5 - len(fields))
    cuda = re.search(r"CUDA Version: *([\d.]+)", ask(["nvidia-smi"]))
    commit = os.environ.get("COMMIT") or ask(["git", "rev-parse", "HEAD"])
    return {"card": fields[0], "cards": len(card), "driver": fields[1], "card_memory": fields[2],
            "pcie_generation": fields[3], "pcie_width": fields[4], "cuda": cuda.group(1) if cuda else "",
            "cublas": os.environ.get("COMOE_CUBLAS", ""), "cpu": first("/proc/cpuinfo", r"model name\s*:\s*(.*)"),
            "cores": os.cpu_count(), "memory_kib": first("/proc/meminfo", r"MemTotal:\s*(\d+)"),
            "kernel": platform.release(),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"), "commit": commit}


def run_part(suite, name, function, results):
    begin = time.monotonic()
    part = Part()
    try:
        if suite.left() < 5:
            part.state = "skipped: no time was left"
        else:
            function(suite, part)
    except Exception as error:  # noqa: BLE001 - a part that breaks must not take the others with it
        part.check("the part itself", False, f"{type(error).__name__}: {error}")
    results[name] = part.json(time.monotonic() - begin)
    failed = sum(not check["passed"] for check in part.checks)
    print(f"{name:<12} {results[name]['state'][:60]:<10} {results[name]['seconds']:6.1f} s  "
          f"{len(part.checks) - failed} of {len(part.checks)} checks", flush=True)
    for check in part.checks:
        if not check["passed"]:
            print(f"    FAILED {check['name']}: {check.get('value', '')}"[:300]
                  + (f" (target {check['target']})" if "target" in check else ""), flush=True)


def main(arguments):
    from suite_bench import PARTS as MEASURED
    from suite_parts import PARTS as CHECKED
    parts = {**CHECKED, **MEASURED}
    directory, out, *wanted = arguments
    unknown = [name for name in wanted if name not in parts]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are {' '.join(parts)}")
        return 2
    wanted = wanted or list(parts)
    begin = time.monotonic()
    suite = Suite(directory, out)
    signal.signal(signal.SIGTERM, suite.stop_all)
    signal.signal(signal.SIGINT, suite.stop_all)
    results = {}
    document = {"machine": machine(), "parts": results}
    path = os.path.join(out, "suite.json")

    def write():
        document["seconds"] = round(time.monotonic() - begin, 1)
        document["passed"] = all(part["state"] != "failed" for part in results.values())
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
        os.replace(path + ".tmp", path)

    threads = [threading.Thread(target=run_part, args=(suite, name, parts[name], results))
               for name in wanted if name in SIDE_BY_SIDE]
    for name in wanted:  # in the order of the table: `device` first, as nothing works where it does not
        if name == "device":
            run_part(suite, name, parts[name], results)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    write()
    for name in wanted:
        if name not in SIDE_BY_SIDE and name != "device":
            run_part(suite, name, parts[name], results)
            write()
    with tarfile.open(os.path.join(out, "logs.tar.xz"), "w:xz") as archive:
        archive.add(suite.logs, arcname="logs")
    shutil.rmtree(suite.logs, ignore_errors=True)
    write()
    print(f"{'passed' if document['passed'] else 'FAILED'} in {document['seconds']} s: {path}")
    return 0 if document["passed"] else 1


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: suite.sh DIR OUT [PART...]")
    sys.exit(main(sys.argv[1:]))
