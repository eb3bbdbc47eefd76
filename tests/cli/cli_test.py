#!/usr/bin/env python3
"""The subcommands of comoe as a person uses them: output, exit code, and the one line an error gives."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

COMOE = ""
ROOT = os.environ["COMOE_SOURCE_DIR"]
DEMO = os.path.join(ROOT, "models", "moe-32x4-demo")
FIXTURES = os.path.join(ROOT, "tests", "fixtures", "checkpoints")
PROMPT = "It is a truth universally acknowledged, that"


def run(*arguments, stdin=None):
    return subprocess.run([COMOE, *arguments], input=stdin, capture_output=True, timeout=300, check=False)


def golden_text():
    with open(os.path.join(DEMO, "golden_greedy.json"), encoding="utf-8") as file:
        return json.load(file)


class Generate(unittest.TestCase):
    def test_greedy_text_is_the_reference(self):
        case = golden_text()[0]
        got = run("generate", "--model", DEMO, "--prompt", case["prompt"], "--greedy", "--max-tokens",
                  str(len(case["output_ids"])))
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(got.stdout.decode(), case["text"] + "\n")
        self.assertEqual(got.stderr, b"")

    def test_a_seed_repeats_and_another_differs(self):
        def sample(seed):
            return run("generate", "--model", DEMO, "--prompt", PROMPT, "--seed", seed, "--temperature", "1.0",
                       "--max-tokens", "32").stdout
        self.assertEqual(sample("7"), sample("7"))
        self.assertNotEqual(sample("7"), sample("8"))

    def test_small_chunks_give_the_same_text(self):
        def text(chunk):
            return run("generate", "--model", DEMO, "--prompt", PROMPT, "--greedy", "--max-tokens", "16",
                       "--max-batch-tokens", chunk).stdout
        self.assertEqual(text("3"), text("512"))

    def test_a_widened_model_writes_the_same_text(self):
        case = golden_text()[0]
        got = run("generate", "--model", DEMO, "--widen", "1024,768", "--prompt", case["prompt"], "--greedy",
                  "--max-tokens", str(len(case["output_ids"])), "--quiet")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(got.stdout.decode(), case["text"] + "\n")


class Tokenize(unittest.TestCase):
    def test_there_and_back(self):
        ids = run("tokenize", "--model", DEMO, PROMPT).stdout.decode().split()
        self.assertEqual([int(i) for i in ids], golden_text()[0]["prompt_ids"])
        self.assertEqual(run("tokenize", "--model", DEMO, "--decode", *ids).stdout.decode(), PROMPT + "\n")

    def test_reads_standard_input_and_prints_json(self):
        got = run("tokenize", "--model", DEMO, "--json", stdin=PROMPT.encode())
        self.assertEqual(json.loads(got.stdout)["ids"], golden_text()[0]["prompt_ids"])

    def test_invalid_utf8_is_refused(self):
        got = run("tokenize", "--model", DEMO, stdin=b"\xff\xfe")
        self.assertEqual(got.returncode, 1)
        self.assertIn(b"UTF-8", got.stderr)


class Inspect(unittest.TestCase):
    def test_facts(self):
        facts = json.loads(run("inspect", "--model", DEMO, "--json").stdout)
        self.assertEqual(facts["architecture"], "qwen3_moe")
        self.assertEqual((facts["layers"], facts["experts"], facts["experts_per_token"]), (8, 32, 4))
        self.assertAlmostEqual(facts["total_parameters"], 13.2e6, delta=0.1e6)
        self.assertEqual(facts["expert_bytes"], 3 * 256 * 48 * 2)
        self.assertEqual(facts["all_expert_bytes"], facts["expert_bytes"] * 8 * 32)
        self.assertIn(b"routed experts", run("inspect", "--model", DEMO).stdout)


class EvalAndWiden(unittest.TestCase):
    def test_nll_is_the_first_number(self):
        path = os.path.join(DEMO, "golden_nll.json")
        with open(path, encoding="utf-8") as file:
            reference = json.load(file)["heldout_first_4096_tokens_as_8x512_nll"]
        got = run("eval", "--model", DEMO, "--ids", path, "--quiet")
        self.assertAlmostEqual(float(got.stdout.split()[0]), reference, delta=1e-3)

    def test_widen_writes_a_checkpoint_that_verifies(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "wide")
            got = run("widen", "--model", DEMO, "--hidden", "512", "--intermediate", "64", "--out", out, "--quiet")
            self.assertEqual(got.returncode, 0, got.stderr)
            for name in ("golden_greedy.json",):
                with open(os.path.join(DEMO, name), "rb") as source, open(os.path.join(out, name), "wb") as target:
                    target.write(source.read())
            got = run("verify", out)
            self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
            self.assertIn(b"10 of 10", got.stdout)


class Errors(unittest.TestCase):
    def check(self, arguments, *words, code=1):
        got = run(*arguments)
        self.assertEqual(got.returncode, code, (arguments, got.stdout, got.stderr))
        lines = got.stderr.decode().strip().splitlines()
        if code == 1:
            self.assertEqual(len(lines), 1, lines)
        for word in words:
            self.assertIn(word, got.stderr.decode())

    def test_one_clear_line(self):
        self.check(["generate", "--model", "/nowhere", "--prompt", "x"], "/nowhere", "config.json")
        self.check(["generate", "--prompt", "x"], "--model")
        self.check(["generate", "--prompt", "x", "--model", os.path.join(ROOT, "docs")], "has no config.json",
                   "--model wants")
        self.check(["generate", "--model", DEMO, "--prompt", ""], "prompt")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--max-tokens", "0"], "--max-tokens")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--temperature", "nan"], "temperature")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--top-p", "0"], "top_p")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--device", "cuda", "--cuda-plugin",
                    "/nowhere/libcomoe_cuda.so"], "the CUDA plugin cannot be loaded", "/nowhere/libcomoe_cuda.so")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--policy", "lru"], "lru", "resident",
                   "--device cuda or emulated")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--expert-cache-fraction", "0.5"], "tiers")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--kv-bytes", "lots"], "lots", "GiB")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--kv-bytes", "10"], "--kv-bytes")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--kv-bytes", "900GiB"], "does not fit")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--widen", "10"], "--widen")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--widen", "128,768"], "128")
        self.check(["generate", "--model", os.path.join(FIXTURES, "mixtral"), "--prompt", "x"], "tokenizer.json")
        self.check(["generate", "--server", "127.0.0.1:1", "--prompt", "x"], "127.0.0.1:1", "comoe serve")
        self.check(["generate", "--server", "127.0.0.1:1", "--model", DEMO, "--prompt", "x"], "--server", "--model")
        self.check(["generate", "--model", DEMO, "--prompt", "x", "--greedy", "--temperature", "1"], "--greedy")
        self.check(["generate", "--model", DEMO, "--prompt", b"\xff"], "UTF-8")
        self.check(["generate", "--model", DEMO, "--prompt", "x " * 3000], "2047")
        self.check(["verify", DEMO, "--model", DEMO], "DIR", "--model")
        self.check(["verify", "/nowhere"], "/nowhere")
        self.check(["inspect"], "--model")
        self.check(["verify", os.path.join(ROOT, "docs")], "no references")
        self.check(["eval", "--model", DEMO, "--ids", os.path.join(DEMO, "config.json")], "config.json", "ids")
        self.check(["health", "--server", "127.0.0.1:1"], "127.0.0.1:1")

    def test_flags_of_another_device_or_policy_are_refused(self):
        generate = ["generate", "--model", DEMO, "--prompt", "x", "--max-tokens", "1"]
        for device in ("cpu", "emulated"):
            for flag in (["--nvtx"], ["--activations", "f32"], ["--cuda-graphs", "on"], ["--cuda-plugin", "x.so"],
                         ["--cuda-device", "0"]):
                self.check([*generate, "--device", device, *flag], flag[0] + " needs --device cuda", device)
        for device, flag in (("cpu", "--emulated"), ("auto", "--emulated"), ("cpu", "--emulated-clock")):
            value = "virtual" if flag == "--emulated-clock" else "pcie4x16"
            self.check([*generate, "--device", device, flag, value], flag + " needs --device emulated")
        for flag in (["--hub", "window=50"], ["--hub-mode", "latency"], ["--hub-state", "x"]):
            self.check([*generate, "--device", "emulated", "--policy", "lru", *flag], flag[0] + " needs --policy hub",
                       "lru")
            self.check([*generate, "--device", "cpu", *flag], flag[0] + " needs --policy hub", "resident")
        # What --device auto may find decides.
        got = run(*generate, "--cuda-plugin", "/nowhere/libcomoe_cuda.so", "--nvtx", "--hub-mode", "throughput")
        self.assertEqual(got.returncode, 0, got.stderr)
        lines = got.stderr.decode().splitlines()
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], r" W engine: --nvtx and --cuda-plugin and --hub-mode have no effect: the device is "
                                   r"the cpu \(.*/nowhere/libcomoe_cuda.so")
        got = run(*generate, "--device", "emulated", "--hub-mode", "throughput", "--emulated", "pcie3x16", "--quiet")
        self.assertEqual(got.returncode, 0, got.stderr)

    def test_what_cannot_be_written_is_known_at_start(self):
        generate = ["generate", "--model", DEMO, "--prompt", "x", "--device", "emulated"]
        self.check([*generate, "--timeline", "/nowhere/t.json"], "--timeline /nowhere/t.json", "make the folder")
        self.check([*generate, "--timeline", __file__ + "/t.json"], "Not a directory", "make the folder")
        self.check([*generate, "--timeline", "/tmp"], "--timeline /tmp", "folder")

    def test_flags_of_tiers_are_named_on_the_cpu(self):
        generate = ["generate", "--model", DEMO, "--prompt", "x", "--device", "cpu"]
        for flags in (["--page-lock", "off"], ["--pinned-bytes", "1GiB"], ["--tiers", "exclusive"],
                      ["--expert-file", "x"]):
            got = run(*generate, *flags)
            self.assertEqual(got.returncode, 1)
            named = [word for word in got.stderr.decode().split() if word.startswith("--") and word != "--device"]
            self.assertIn(named, ([flags[0]], [flags[0] + ":"]), got.stderr)

    def test_usage_errors(self):
        self.assertNotEqual(run().returncode, 0)
        self.assertEqual(run("fly").returncode, 2)
        self.assertIn(b"'fly'", run("fly").stderr)
        self.assertEqual(run("generate", "--no-such-flag").returncode, 2)
        self.assertEqual(run("help").returncode, 0)
        self.assertEqual(run("--help").returncode, 0)
        self.assertEqual(run("--version").stdout.split()[0], b"comoe")

    def altered_demo(self, folder, name, change):
        """A folder that is the demo model but for one file."""
        for entry in os.listdir(DEMO):
            if entry != name:
                os.symlink(os.path.join(DEMO, entry), os.path.join(folder, entry))
        with open(os.path.join(DEMO, name), encoding="utf-8") as file:
            document = json.load(file)
        change(document)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(document, file)

    def test_files_that_do_not_belong_together(self):
        for name, change, word in (
                ("generation_config.json", lambda d: d.update(temperature=5), "temperature"),
                ("generation_config.json", lambda d: d.update(eos_token_id=8192), "eos_token_id"),
                ("config.json", lambda d: d.update(eos_token_id=8192), "eos_token_id"),
                ("tokenizer.json", lambda d: d["model"]["vocab"].update({"unheard": 8192}), "vocab_size")):
            with tempfile.TemporaryDirectory() as folder:
                self.altered_demo(folder, name, change)
                self.check(["generate", "--model", folder, "--prompt", "x", "--max-tokens", "1"], name, word)
        with tempfile.TemporaryDirectory() as folder:
            self.altered_demo(folder, "generation_config.json", lambda d: None)
            os.remove(os.path.join(folder, "generation_config.json"))
            os.symlink("generation_config.json", os.path.join(folder, "generation_config.json"))
            self.check(["generate", "--model", folder, "--prompt", "x"], "generation_config.json")

    def test_a_full_context_ends_the_text(self):
        got = run("generate", "--model", DEMO, "--prompt", "1" * 2040, "--greedy", "--max-tokens", "50")
        self.assertEqual(got.returncode, 0)
        self.assertIn(b"2048 is full", got.stderr)

    def test_a_full_disk_is_not_success(self):
        with open("/dev/full", "wb") as full:
            for arguments in (["tokenize", "--model", DEMO, "x"], ["inspect", "--model", DEMO]):
                got = subprocess.run([COMOE, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
                self.assertEqual(got.returncode, 1, arguments)
                self.assertIn(b"could not be written", got.stderr)

    def test_verify_fails_when_a_reference_differs(self):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(FIXTURES, "qwen3_moe")
            for name in os.listdir(source):
                with open(os.path.join(source, name), "rb") as file:
                    content = file.read()
                if name == "golden.safetensors":  # the first number of logits.0 becomes infinite
                    header = int.from_bytes(content[:8], "little")
                    first = 8 + header + json.loads(content[8:8 + header])["logits.0"]["data_offsets"][0]
                    content = content[:first] + b"\x00\x00\x80\x7f" + content[first + 4:]
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(content)
            got = run("verify", folder)
            self.assertEqual(got.returncode, 1)
            self.assertIn(b"FAIL golden.json logits", got.stdout)


if __name__ == "__main__":
    COMOE = sys.argv.pop(1)
    unittest.main()
