#!/usr/bin/env python3
"""The studies of comoe bench offload: --ablation and --sweep, as a person runs them."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

COMOE = ""
DEMO = os.path.join(os.environ["COMOE_SOURCE_DIR"], "models", "moe-32x4-demo")


def run(*arguments, model=DEMO, **env):
    return subprocess.run([COMOE, "bench", "offload", "--model", model, "--warmup", "0", "--copy-computes", "4",
                           "--quiet", *arguments], capture_output=True, timeout=600, check=False,
                          env={**os.environ, **env})


class OffloadStudy(unittest.TestCase):
    def good_json(self, *arguments):
        got = run(*arguments, "--json")
        self.assertEqual(got.returncode, 0, got.stderr)
        return json.loads(got.stdout)

    def test_an_ablation_adds_parts_and_leaves_them_out(self):
        out = self.good_json("--ablation", "--batch", "4", "--steps", "60")
        rows = {(p["system"], p["part"]): p for p in out["points"]}
        chain = ["tiers", "+ forecasts", "+ overlap"]
        self.assertEqual([k for k in rows if k[0] == "simple"], [("simple", part) for part in chain + ["- forecasts"]])
        self.assertEqual([k for k in rows if k[0] == "hub"],
                         [("hub", part) for part in chain + ["+ host lane", "- forecasts", "- overlap"]])
        self.assertTrue(all(p["same_tokens"] for p in out["points"]), "no part changes what is computed")
        naive = rows["naive", "naive"]["tokens_per_second"]
        for system, parts in (("simple", chain), ("hub", chain + ["+ host lane"])):
            shares = sum(rows[system, part]["share_of_gain"] for part in parts)
            self.assertAlmostEqual(shares, 1.0)
            before = naive
            for part in parts:
                row = rows[system, part]
                self.assertAlmostEqual(row["factor"], row["tokens_per_second"] / before)
                before = row["tokens_per_second"]
            self.assertGreater(rows[system, "tiers"]["factor"], 1.0)
            self.assertGreater(rows[system, "+ overlap"]["factor"], 1.0)

    def test_a_sweep_says_which_flags_are_best_for_either_mode(self):
        sweep = ("--sweep", "look_ahead=0,1", "--batch", "1,2", "--steps", "20")
        got = run(*sweep)
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn("--hub-mode latency --hub look_ahead=1\n", got.stdout.decode())
        # 1 is that mode's own.
        self.assertIn("--hub-mode throughput; the mode's own values are as good: no flags needed", got.stdout.decode())
        self.assertEqual(got.stdout.decode().count("the mode's own values"), 2)
        out = self.good_json(*sweep)
        self.assertEqual((out["latency"]["hub"], out["throughput"]["hub"]), ("look_ahead=1", ""))
        self.assertLess(out["latency"]["tuned"]["inter_token_p99_seconds"],
                        out["latency"]["mode_alone"]["inter_token_p99_seconds"] / 1.001)
        self.assertEqual(out["throughput"]["tuned"], out["throughput"]["mode_alone"])
        for bad, text in ((("--sweep", "look_ahead=many"), "is no number"), (("--sweep", "lookahead=1"), "lookahead"),
                          (("--sweep", "look_ahead=1", "--ablation"), "give one of them")):
            got = run(*bad)
            self.assertEqual((got.returncode, got.stderr.decode().count("\n")), (1, 1))
            self.assertIn(text, got.stderr.decode())

    def test_values_that_change_nothing_are_not_recommended(self):
        got = run("--sweep", "top_k_multiple=2,2.0", "--sweep", "token_table_bytes=16777216", "--batch", "1",
                  "--steps", "5")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(got.stdout.decode().count("as good: no flags needed"), 2, got.stdout.decode())
        self.assertNotIn("--hub ", got.stdout.decode())

    def test_a_plot_is_drawn_or_known_to_be_impossible(self):
        with tempfile.TemporaryDirectory() as folder:
            plot = os.path.join(folder, "x.svg")
            begin = time.monotonic()
            got = run("--plot", plot, "--steps", "100000", PATH=folder)
            self.assertEqual((got.returncode, got.stderr.decode().count("\n")), (1, 1), got.stderr)
            self.assertIn("apt-get install gnuplot-nox", got.stderr.decode())
            self.assertLess(time.monotonic() - begin, 20)
            self.assertEqual(os.listdir(folder), [])
            if shutil.which("gnuplot") is None:
                self.skipTest("no gnuplot: what it draws is not looked at")
            # All of one height, and at one place.
            got = run("--sweep", "top_k_multiple=2", "--batch", "1", "--steps", "2", "--plot", plot)
            self.assertEqual((got.returncode, got.stderr), (0, b""))
            self.assertEqual(os.listdir(folder), ["x.svg"])
            self.assertGreater(os.path.getsize(plot), 1000)

    def test_points_with_and_without_the_host_lane(self):
        out = self.good_json("--policies", "naive,hub", "--host-lanes", "off,on", "--batch", "2,4", "--steps", "20")
        points = out["points"]
        self.assertEqual([(p["batch"], p["host_lane"], p["policy"]) for p in points],
                         [(batch, lane, policy) for batch in (2, 4) for lane in ("off", "on")
                          for policy in ("naive", "hub")])
        for p in points:
            first = points[0 if p["batch"] == 2 else 4]
            self.assertAlmostEqual(p["speed_of_first_policy"], p["tokens_per_second"] / first["tokens_per_second"])
            self.assertTrue(p["same_tokens"])
            self.assertEqual(p["served"]["host"] > 0, p["host_lane"] == "on")
        got = run("--policies", "hub", "--host-lanes", "on", "--batch", "1", "--steps", "2")
        self.assertIn(" lane ", got.stdout.decode())

    def test_plain_text_is_cut_into_texts_of_the_models_tokens(self):
        with tempfile.TemporaryDirectory() as folder:
            def file(name, data):
                path = os.path.join(folder, name)
                with open(path, "wb") as target:
                    target.write(data)
                return path
            book = file("book.txt", "".join(f"Line {i}: the {i * i}th of them, naïve and plain.\n"
                                            for i in range(400)).encode())
            out = self.good_json("--text", book, "--policies", "naive,lru", "--batch", "1,8", "--steps", "10")
            self.assertEqual(out["ids"], book)
            self.assertEqual([p["tokens"] for p in out["points"]], [10, 10, 80, 80])
            bare = os.path.join(folder, "bare")
            shutil.copytree(DEMO, bare, ignore=shutil.ignore_patterns("tokenizer.json", "*.npz", "golden*"))
            for model, arguments, text in (
                    (DEMO, ("--text", file("short.txt", b"hi"), "--batch", "1"), "longer text"),
                    (DEMO, ("--text", file("empty.txt", b"")), "empty.txt holds no text"),
                    (DEMO, ("--text", file("bad.txt", b"ab\xff")), "bad.txt: the text is not UTF-8 at byte 2"),
                    (DEMO, ("--text", os.path.join(folder, "none.txt")), "none.txt"),
                    (bare, ("--text", book), "tokenizer.json: give --force-ids"),
                    (bare, (), "Give --text FILE")):
                got = run(*arguments, "--policies", "lru", "--steps", "2", model=model)
                self.assertEqual((got.returncode, got.stderr.decode().count("\n")), (1, 1), got.stderr)
                self.assertIn(text, got.stderr.decode())
        self.assertEqual(run("--text", "a", "--force-ids", "b").returncode, 2)

    def test_flags_that_would_do_nothing_are_refused(self):
        for bad, text in ((("--host-lanes", "off,often"), "often"),
                          (("--host-lanes", "off,on", "--host-lane", "on"), "not both"),
                          (("--host-lanes", "off,on", "--ablation"), "--host-lanes"),
                          (("--policies", "naive,lru", "--hub", "window=50"), "--hub needs --policy hub"),
                          (("--sweep", "look_ahead=0,1", "--hub", "window=50"), "--hub"),
                          (("--policy", "hub"), "--policies"), (("--nvtx",), "--nvtx needs --device cuda"),
                          (("--policies", "lru,random"), "naive-pageable, static"),
                          (("--device", "cuda"), "--copy-computes needs --device emulated"),
                          (("--plot", "x.pdf"), "FILE.svg"), (("--plot", "/nowhere/x.svg"), "/nowhere"),
                          (("--timeline", "/nowhere/t.json", "--policies", "lru"), "/nowhere cannot be written")):
            got = run(*bad)
            self.assertEqual((got.returncode, got.stderr.decode().count("\n")), (1, 1), (bad, got.stderr))
            self.assertIn(text, got.stderr.decode())
        for device in ("cpu", "auto"):
            if device == "cpu" or not os.path.exists("/dev/nvidiactl"):
                got = run("--device", device)
                self.assertEqual((got.returncode, got.stderr.decode().count("\n")), (1, 1), got.stderr)
                self.assertIn("--policies are compared where experts move", got.stderr.decode())
                self.assertIn("give --device emulated", got.stderr.decode())
        got = run("--policies", "lru,hub", "--hub", "window=50", "--batch", "1", "--steps", "2")
        self.assertEqual(got.returncode, 0, got.stderr)


if __name__ == "__main__":
    COMOE = sys.argv.pop(1)
    unittest.main(verbosity=2)
