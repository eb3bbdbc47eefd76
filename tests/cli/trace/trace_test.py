#!/usr/bin/env python3
"""comoe trace: record, import, replay, stats, fit and study as a person uses them."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

COMOE = ""
ROOT = os.environ["COMOE_SOURCE_DIR"]
DEMO = os.path.join(ROOT, "models", "moe-32x4-demo")
NPZ = os.path.join(DEMO, "routing_trace.npz")


def run(*arguments):
    return subprocess.run([COMOE, *arguments], capture_output=True, timeout=600, check=False)


class Trace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.trace = os.path.join(cls.folder.name, "recorded.trace")
        cls.recorded = run("trace", "record", "--model", DEMO, "--trace", cls.trace, "--force-ids", NPZ,
                           "--max-sequences-in-file", "4", "--tokens", "48", "--quiet")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def good_json(self, *arguments):
        got = run(*arguments, "--json")
        self.assertEqual(got.returncode, 0, got.stderr)
        return json.loads(got.stdout)

    def bad(self, text, *arguments):
        got = run(*arguments)
        self.assertEqual(got.returncode, 1)
        self.assertIn(text, got.stderr.decode())
        self.assertEqual(got.stderr.decode().count("\n"), 1)

    def test_a_recorded_trace_says_what_the_reference_says(self):
        self.assertEqual(self.recorded.returncode, 0, self.recorded.stderr)
        self.assertIn(b"4 texts, 192 rows", self.recorded.stdout)
        ours = self.good_json("trace", "stats", "--trace", self.trace)
        self.assertEqual((ours["model"], ours["sequences"], ours["rows"]), ("moe-32x4-demo", 4, 192))
        # The same rows, from the reference's trace: routed sets agree in 99.9 %.
        imported = os.path.join(self.folder.name, "imported.trace")
        self.assertEqual(run("trace", "import", "--from", NPZ, "--trace", imported).returncode, 0)
        again = os.path.join(self.folder.name, "again.trace")
        got = run("trace", "record", "--model", DEMO, "--trace", again, "--force-ids", imported,
                  "--max-sequences-in-file", "4", "--tokens", "48", "--quiet")
        self.assertEqual(got.returncode, 0, got.stderr)
        with open(self.trace, "rb") as one, open(again, "rb") as other:
            self.assertEqual(one.read(), other.read(), "the texts of an imported trace are those of the .npz")

    def test_replay_has_policies_bounds_and_forecasts(self):
        out = self.good_json("trace", "replay", "--trace", NPZ, "--policy", "naive,lru,oracle", "--capacity",
                             "0.25,0.5", "--batch", "1,4", "--steps", "200", "--quiet")
        points = {(p["policy"], p["capacity"], p["batch"]): p for p in out["points"]}
        self.assertEqual(len(points), 12)
        for (policy, capacity, batch), point in points.items():
            if policy != "naive":
                self.assertGreater(point["speed_of_first_policy"], 0.999, (policy, capacity, batch))
            self.assertLessEqual(points["oracle", capacity, batch]["time"], point["time"])
        self.assertEqual(points["naive", 0.25, 1]["hits"], 0)
        for bound in out["oracle"]:
            self.assertLessEqual(bound["best_decayed"], bound["optimal_pooled"])
        window = [f for f in out["forecasts"] if f["predictor"] == "window" and f["ahead"] == 1][0]
        self.assertEqual(window["widths"], [4, 8, 16])
        self.assertLess(window["recall"][0], window["recall"][1])

    def test_a_link_needs_the_size_of_an_expert_and_has_it_from_the_model(self):
        out = self.good_json("trace", "replay", "--trace", NPZ, "--policy", "lru", "--link", "pcie4x16", "--steps",
                             "50", "--predictors", "none")
        self.assertEqual(out["unit"], "seconds")
        alone = os.path.join(self.folder.name, "alone.npz")
        with open(NPZ, "rb") as source, open(alone, "wb") as target:
            target.write(source.read())
        self.bad("--expert-bytes", "trace", "replay", "--trace", alone, "--policy", "lru", "--link", "pcie4x16")

    def test_fit_writes_a_file_that_replay_reads(self):
        classifier = os.path.join(self.folder.name, "classifier")
        out = self.good_json("trace", "fit", "--trace", self.trace, "--out", classifier, "--passes", "1",
                             "--quiet")
        self.assertIn("pays", out)
        out = self.good_json("trace", "replay", "--trace", self.trace, "--policy", "lru", "--classifier", classifier,
                             "--predictors", "window", "--quiet")
        self.assertIn("classifier", {f["predictor"] for f in out["forecasts"]})
        self.bad("no classifier", "trace", "replay", "--trace", self.trace, "--classifier", self.trace, "--policy",
                 "lru", "--predictors", "window", "--quiet")

    def test_studies_name_a_knee(self):
        out = self.good_json("trace", "study", "accuracy", "--trace", NPZ, "--links", "4", "--steps", "400", "--quiet")
        seconds = {name: {r["accuracy_percent"]: r["computes_per_token"] for r in out["runs"]
                          if r["name"] == name and "accuracy_percent" in r} for name in ("simple", "hub")}
        off = {r["name"]: r["computes_per_token"] for r in out["runs"] if not r["prefetch"]}
        for name, by_accuracy in seconds.items():
            self.assertEqual(sorted(by_accuracy), list(range(50, 101, 5)), name)
            self.assertLess(by_accuracy[100], by_accuracy[50], name)
        # Who believes every guess pays for wrong ones; who judges them does not.
        self.assertGreater(seconds["simple"][50], 1.05 * off["simple"])
        self.assertLess(seconds["hub"][50], 1.02 * off["hub"])
        knees = {k["name"]: k for k in out["knees"]}
        self.assertEqual(sorted(knees), ["hub", "simple"])
        knee = knees["simple"]
        self.assertLess(seconds["simple"][knee["knee_percent"]], off["simple"])
        self.assertLess(50, knee["knee_percent"])
        self.assertLessEqual(knee["knee_percent"], knee["half_gain_percent"])
        self.assertAlmostEqual(off["simple"] / seconds["simple"][100] - 1, knee["gain_at_100"])
        self.bad("simple and hub", "trace", "study", "accuracy", "--trace", NPZ, "--policy", "lru", "--steps", "10",
                 "--quiet")

    def test_widths_run_from_k_to_all(self):
        out = self.good_json("trace", "study", "width", "--trace", NPZ, "--links", "4", "--steps", "60", "--predictors",
                             "window,hub", "--quiet")
        for name in ("window", "hub"):
            self.assertEqual([r["width"] for r in out["runs"] if r["name"] == name and "width" in r], [4, 8, 16, 32])

    def test_errors_name_cause_and_remedy(self):
        self.bad("which trace?", "trace", "stats")
        self.bad("no policy is called", "trace", "replay", "--trace", self.trace, "--policy", "wishful", "--quiet")
        self.bad("not a routing trace", "trace", "stats", "--trace", os.path.join(DEMO, "config.json"))
        self.bad("needs as many sequences", "trace", "replay", "--trace", self.trace, "--batch", "64", "--quiet")
        self.bad("96 sequences", "trace", "replay", "--trace", self.trace, "--protocol", "study", "--quiet")
        self.bad("--force-ids", "trace", "record", "--model", DEMO)
        self.bad("name it FILE.svg or FILE.png", "trace", "replay", "--trace", self.trace, "--plot", "x.pdf", "--quiet")
        cut = os.path.join(self.folder.name, "cut.trace")
        with open(self.trace, "rb") as source, open(cut, "wb") as target:
            target.write(source.read()[:-10])
        self.bad("cut short", "trace", "stats", "--trace", cut)

    def test_plain_text_is_recorded(self):
        target = os.path.join(self.folder.name, "text.trace")
        got = run("trace", "record", "--model", DEMO, "--trace", target, "--text", os.path.join(ROOT, "README.md"),
                  "--max-sequences-in-file", "2", "--quiet")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn(b"2 texts, 512 rows", got.stdout)

    def test_nothing_half_written(self):
        target = os.path.join(self.folder.name, "never.trace")
        got = run("trace", "record", "--model", DEMO, "--trace", target, "--force-ids",
                  os.path.join(DEMO, "config.json"), "--quiet")
        self.assertEqual(got.returncode, 1)
        self.assertEqual([f for f in os.listdir(self.folder.name) if f.startswith("never")], [])


if __name__ == "__main__":
    COMOE = sys.argv.pop(1)
    unittest.main()
