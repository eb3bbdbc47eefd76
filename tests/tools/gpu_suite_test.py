"""tools/gpu/suite.sh over programs that are none: what it makes of what they say, of failures and of time."""

import json
import os
import stat
import subprocess
import tempfile
import unittest

ROOT = os.environ.get("COMOE_SOURCE_DIR") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
KERNELS = {"ffn 64 experts x 1 rows bf16": (0.87, 100.0), "ffn 64 experts x 4 rows exact": (0.59, 100.0),
           "ffn 64 experts x 256 rows, tiles bf16": (0.3, 400.0),
           "ffn 64 experts x 256 rows, cuBLAS batched": (0, 260.0),
           "rms_norm 32768x2048": (0.97, 130.0), "gate 2097152x64 top 8": (0.25, 600.0), "gate 1x64 top 8": (0, 4.0)}
BENCH = """copy: 4210 GB/s (read + written)
gate 2097152x64 top 8                              600.0 us     1000 GB/s  25.0 %
  floors: 160.0 us of bytes, 500.0 us of issue at 1980 MHz: 83.3 % of the higher
"""
POINT = {"batch": 1, "bytes_to_device": 1000, "capacity": 1.0, "copies": {"h2d": {"busy_seconds": 0.5,
         "overlapped_seconds": 0.1}}, "decisions": {"observe_seconds": 0, "plan_seconds": 0}, "device_busy_share": 0.9,
         "first_token_seconds": {}, "host_lane_seconds": 0.0, "inter_token_seconds": {}, "other_seconds": 0.0,
         "prefetch_bytes": {"wasted": 0}, "same_tokens": True, "seconds": 1.0, "served": {}, "stall_seconds": {},
         "tokens": 40, "unpinned_copies": 0}


class Suite(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.dir = os.path.join(self.folder.name, "dir")
        self.out = os.path.join(self.folder.name, "out")
        os.makedirs(os.path.join(self.dir, "bin"))
        self.program("comoe", "", code=1)

    def program(self, name, text, code=0, before=""):
        path = os.path.join(self.dir, "bin", name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{before}\ncat <<'END'\n{text}\nEND\nexit {code}\n")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def script(self, name, *arguments, **env):
        return subprocess.run(["sh", os.path.join(ROOT, "tools", "gpu", name), *arguments],
                              env={**os.environ, "COMMIT": "abc", "PYTHONDONTWRITEBYTECODE": "1", **env}, cwd=ROOT,
                              capture_output=True, text=True, timeout=50, check=False)

    def start(self, *parts, **env):
        return self.script("suite.sh", self.dir, self.out, *parts, **env)

    def run_suite(self, *parts, **env):
        run = self.start(*parts, **env)
        with open(os.path.join(self.out, "suite.json"), encoding="utf-8") as file:
            found = json.load(file)
        return run, found

    def failed(self, part):
        return [check["name"] for check in part["checks"] if not check["passed"]]

    def test_shares_are_held_to_the_targets(self):
        lines = "\n".join(json.dumps({"name": name, "us": us, "copy_share": share, "blas_share": 0})
                          for name, (share, us) in KERNELS.items())
        self.program("cuda_kernels_bench", BENCH, before=f"cat >\"$1\" <<'END'\n{lines}\nEND")
        run, found = self.run_suite("bench")
        part = found["parts"]["bench"]
        self.assertEqual(self.failed(part), ["ffn 64 experts x 4 rows exact"], run.stdout)
        self.assertEqual(part["state"], "failed")
        self.assertEqual(part["numbers"]["copy_gb_per_second"], "4210")
        checks = {check["name"]: check for check in part["checks"]}
        self.assertEqual(checks["gate 2097152x64 top 8"]["value"], 0.833)
        self.assertEqual(checks["ffn 64 experts x 256 rows, tiles bf16"]["value"], 0.65)
        self.assertNotIn("gate 1x64 top 8", checks)
        self.assertEqual((found["machine"]["commit"], found["passed"], run.returncode), ("abc", False, 1))
        self.assertTrue(os.path.exists(os.path.join(self.out, "logs.tar.xz")))

    def test_a_program_that_is_missing_or_fails_is_named(self):
        self.program("cuda_device_check", "cuda: A card\nfailures travel                          INTERNAL: no\n"
                     "record an event                                          1.17 us\n1 checks failed", code=1)
        run, found = self.run_suite("device", "kernels")
        self.assertEqual(self.failed(found["parts"]["device"]), ["device", "failures travel"], run.stdout)
        self.assertEqual(found["parts"]["device"]["numbers"]["microseconds"], {"record an event": 1.17})
        self.assertIn("exit 127", found["parts"]["kernels"]["checks"][0]["value"])

    def test_a_part_ends_when_the_time_is_up(self):
        self.program("cuda_device_check", "", before="sleep 60")
        run, found = self.run_suite("device", "models", "bench", LIMIT="6")
        self.assertIn("ran out of time", found["parts"]["device"]["checks"][0]["value"], run.stdout)
        self.assertEqual(found["parts"]["models"]["state"], "skipped: no time was left")
        self.assertEqual(found["parts"]["bench"]["state"], "skipped: no time was left")
        self.assertLess(found["seconds"], 20)

    def test_the_expert_path_is_held_to_resident(self):
        # Answers for the policy that it is asked about.
        points = {policy: json.dumps({"points": [dict(POINT, policy=policy, tokens_per_second=speed)]})
                  for policy, speed in (("resident", 100.0), ("lru", 91.0), ("simple", 95.0), ("hub", 89.0))}
        cases = "".join(f"*'--policies {policy} '*) echo '{text}';;\n" for policy, text in points.items())
        self.program("comoe", "", before=f"case \"$* \" in\n{cases}esac")
        run, found = self.run_suite("resident")
        self.assertEqual(self.failed(found["parts"]["resident"]), ["demo, hub, batch 1", "widened, hub, batch 1"],
                         run.stdout)

    def test_a_part_that_does_not_exist(self):
        run = self.start("nonsense")
        self.assertEqual(run.returncode, 2)
        self.assertIn("no such part: nonsense", run.stdout)

    def test_arguments_that_cannot_be_are_refused_at_once(self):
        usages = {"suite.sh": "All that needs a GPU", "step_watch.sh": "Shows that a step"}
        for name, usage in usages.items():
            for arguments in ((), (self.dir,), ("--help",), ("--biuld", self.dir), (self.dir, "-x")):
                run = self.script(name, *arguments)
                self.assertEqual((run.returncode, run.stdout.startswith(usage)), (2, True), (arguments, run))
            empty = os.path.join(self.folder.name, "empty")
            run = self.script(name, empty, self.out)
            self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (2, "", 1), run)
            self.assertIn(f"{empty} has no bin/comoe: suite.sh --build {empty} makes it", run.stderr)
            self.assertFalse(os.path.exists(self.out))
        for arguments in (("--build",), ("--build", "--fast")):
            run = self.script("suite.sh", *arguments)
            self.assertEqual((run.returncode, run.stdout.startswith(usages["suite.sh"])), (2, True), (arguments, run))


if __name__ == "__main__":
    unittest.main()
