#!/usr/bin/env python3
"""`comoe doctor` as a person and as a program use it: exit code, table, JSON."""
import json
import os
import subprocess
import sys
import unittest

COMOE = ""
DEMO = os.path.join(os.environ["COMOE_SOURCE_DIR"], "models", "moe-32x4-demo")
FLAGS = ("--model", DEMO, "--device", "emulated", "--policy", "hub", "--kv-bytes", "64MiB", "--steps", "16")


def doctor(*arguments):
    return subprocess.run([COMOE, "doctor", *arguments], capture_output=True, timeout=100, check=False, text=True)


class Doctor(unittest.TestCase):
    def test_a_sound_set_up_exits_with_0(self):
        got = doctor(*FLAGS)
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        self.assertIn("what binds: ", got.stdout)
        self.assertIn("0 failures", got.stdout)

    def test_a_broken_one_exits_with_1_and_json_names_it(self):
        got = doctor(*FLAGS, "--fault", "one-stream", "--json")
        self.assertEqual(got.returncode, 1, got.stderr)
        self.assertEqual(len(got.stderr.splitlines()), 1, got.stderr)
        report = json.loads(got.stdout)
        self.assertEqual(set(report), {"device", "hardware", "worst", "binding", "binding_reason", "findings"})
        self.assertEqual(report["worst"], "failure")
        for finding in report["findings"]:
            self.assertEqual(set(finding), {"id", "severity", "measured", "expected", "remedy", "values"})
        named = {finding["id"]: finding for finding in report["findings"]}
        self.assertEqual(named["overlap.streams"]["severity"], "failure")
        self.assertGreater(named["link.rate"]["values"]["bytes_per_second"], 1e9)

    def test_the_cpu_alone(self):
        got = doctor("--device", "cpu", "--model", DEMO, "--json")
        self.assertEqual(json.loads(got.stdout)["binding"], "host memory", got.stderr)

    def test_hidden_flags_are_hidden(self):
        self.assertNotIn("--fault", doctor("--help").stdout)
        self.assertEqual(doctor("--fault", "gremlins", "--device", "emulated").returncode, 1)


if __name__ == "__main__":
    COMOE = sys.argv.pop(1)
    unittest.main()
