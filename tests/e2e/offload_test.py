"""Serving with experts in tiers (the emulated accelerator): the same text as on the CPU, and metrics that move and add up."""

import collections
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import harness
from harness import CALL_TIMEOUT_S, Begun, Server, Stream, request, stream_request

TIERS = ("--device", "emulated", "--expert-cache-fraction", "0.25", "--max-sequences", "16")
# Nothing fails, is slow or is unpinned in these runs, and nothing leaves the device; the rest has to move.
UNMOVED = {"comoe_expert_copies_failed_total", "comoe_expert_slots_lost", "comoe_expert_copies_unpinned_total",
           "comoe_slow_path_active", "comoe_expert_prefetch_cancelled_total",
           "comoe_expert_transfer_inflight_bytes", "comoe_expert_prefetch_pending_bytes",
           "comoe_expert_prefetch_bytes_total"}
# Set at start, or full since the warm-up.
CONSTANT = {"comoe_device_memory_bytes", "comoe_host_pinned_bytes", "comoe_expert_cache_capacity_bytes",
            "comoe_expert_cache_bytes", "comoe_expert_cache_entries", "comoe_expert_copy_rate_bytes_per_second"}


# Of the hub: what a short, undisturbed run without a host lane has no reason to move.
HUB_UNMOVED = {"comoe_hub_dropped_observations_total", "comoe_hub_fallback_active", "comoe_hub_fallbacks_total",
               "comoe_hub_late_forecasts_total", "comoe_hub_kept_behind_total", "comoe_hub_prefetch_on",
               "comoe_hub_prefetching", "comoe_hub_look_ahead_layers", "comoe_hub_warm", "comoe_hub_hinted_orders_total"}


def documented_families(section):
    text = (harness.ROOT / "docs/METRICS.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    return {name: kind for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE)}


def family_sums(metrics):
    sums = collections.Counter()
    for series, value in metrics.items():
        sums[series.partition("{")[0]] += value
    return sums


def prompts():
    text = (harness.ROOT / "README.md").read_text().split()
    return [" ".join(text[i * 9:i * 9 + 3 + i]) for i in range(16)]


def generate_all(server):
    """Texts of 16 concurrent streams, greedy and sampled with a seed in turn."""
    def one(index):
        sampling = {"temperature": 0.0} if index % 2 == 0 else {"temperature": 0.9, "seed": index}
        call = server.inference.GenerateStream(
            stream_request(prompts()[index], max_tokens=12 + index, sampling=sampling), timeout=CALL_TIMEOUT_S)
        stream = Stream(call)
        assert len(stream.finished) == 1, (stream.code, stream.details)
        return stream.token_ids
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return list(pool.map(one, range(16)))


class OffloadTest(unittest.TestCase):
    def test_the_same_tokens_as_on_the_cpu(self):
        with Server("--max-sequences", "16") as server:
            expected = generate_all(server)
        settings = [("--policy", "naive"), ("--policy", "lru", "--tiers", "exclusive", "--pinned-bytes", "4MiB"),
                    ("--policy", "simple", "--host-lane", "on", "--emulated-clock", "real")]
        for setting in settings:
            with self.subTest(setting=setting), Server(*TIERS, *setting) as server:
                self.assertEqual(generate_all(server), expected)

    def test_from_a_packed_file(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--expert-file", os.path.join(folder, "experts"), "--pinned-bytes", "2MiB")
            answers = []
            for _ in range(2):  # it is made, and used again
                with Server(*TIERS, *flags) as server:
                    answers.append(server.inference.Generate(request(max_tokens=24, sampling={"temperature": 0.0}), timeout=CALL_TIMEOUT_S))
                    text = server.log
            self.assertIn("disk", text)
            self.assertEqual(answers[0].choices[0].text, answers[1].choices[0].text)
            with open(os.path.join(folder, "experts"), "r+b") as file:
                file.seek(200000)
                file.write(b"\xff" * 100)
            with Server(*TIERS, *flags) as server:
                again = server.inference.Generate(request(max_tokens=24, sampling={"temperature": 0.0}), timeout=CALL_TIMEOUT_S)
                self.assertRegex(server.log, "packing all experts .* since")
            self.assertEqual(again.choices[0].text, answers[0].choices[0].text)

    def test_metrics_move_and_add_up(self):
        with Server(*TIERS, "--policy", "simple", "--host-lane", "on", "--pinned-bytes",
                    "4MiB") as server:
            before = family_sums(server.metrics())
            generate_all(server)
            metrics = server.metrics()
            after = family_sums(metrics)
            families = documented_families("Experts in tiers")
            self.assertGreater(len(families), 15)
            for name, kind in families.items():
                total = name + ("_count" if kind == "histogram" else "")
                self.assertIn(total, after)
                if name in CONSTANT:
                    self.assertGreater(after[name], 0, name)
                elif name not in UNMOVED:
                    self.assertNotEqual(after[total], before[total], name)
            exposed = {name for name in re.findall(r"^# TYPE (comoe_(?:expert|device|director|host|slow|hub)\w+) ", server.scrape(),
                                                   re.MULTILINE)}
            self.assertEqual(exposed, set(families))
            self.check_sums(metrics, after)
            promtool = shutil.which("promtool") or shutil.which("promtool", path=str(harness.ROOT / "build/tools"))
            if promtool is not None:
                checked = subprocess.run([promtool, "check", "metrics"], input=server.scrape(), capture_output=True,
                                         text=True, check=False)
                ours = [line for line in (checked.stdout + checked.stderr).splitlines()
                        if not line.startswith("exposer_")]
                self.assertEqual(ours, [])

    def test_what_the_hub_does_is_in_metrics(self):
        """And what it learnt in one run is there in the next."""
        with tempfile.TemporaryDirectory() as folder:
            state = os.path.join(folder, "hub")
            hub = (*TIERS[:-1], "4", "--policy", "hub", "--hub-state", state, "--pinned-bytes", "4MiB")
            with Server(*hub) as server:
                before = family_sums(server.metrics())
                self.assertEqual(before["comoe_hub_warm"], 0)
                generate_all(server)  # sixteen, of which four at a time have a place: the others wait, and are hinted
                metrics = server.metrics()
                after = family_sums(metrics)
                families = documented_families("The routing hub")
                self.assertGreater(len(families), 10)
                for name in families:
                    self.assertIn(name, after)
                    if name not in HUB_UNMOVED:
                        self.assertNotEqual(after[name], before[name], name)
                exposed = set(re.findall(r"^# TYPE (comoe_hub\w+) ", server.scrape(), re.MULTILINE))
                self.assertEqual(exposed, set(families))
                self.assertGreater(metrics['comoe_device_compute_seconds_total{stage="look_ahead"}'], 0)
                self.assertLessEqual(after["comoe_hub_guess_outcomes_total"], after["comoe_hub_guesses_total"])
                self.assertIn(metrics["comoe_hub_look_ahead_layers"], (0, 1, 2))
            with Server(*hub) as server:
                self.assertEqual(server.metrics()["comoe_hub_warm"], 1)

    def check_sums(self, metrics, sums):
        def lookups(tier, result):
            return metrics[f'comoe_expert_lookups_total{{result="{result}",tier="{tier}"}}']
        served = sums["comoe_expert_served_total"]
        self.assertEqual(lookups("device", "hit") + lookups("device", "miss"), served)
        self.assertEqual(lookups("pinned", "hit") + lookups("pinned", "miss"), lookups("device", "miss"))
        self.assertEqual(lookups("host", "hit"), lookups("pinned", "miss"))
        self.assertAlmostEqual(sums["comoe_device_seconds_total"], sums["comoe_device_wall_seconds_total"], delta=1e-6)
        self.assertAlmostEqual(sums["comoe_device_compute_seconds_total"],
                               metrics['comoe_device_seconds_total{kind="compute"}'], delta=1e-6)
        prefetched = metrics['comoe_expert_transfer_bytes_total{direction="h2d",reason="prefetch"}']
        self.assertEqual(sums["comoe_expert_prefetch_bytes_total"] + sums["comoe_expert_prefetch_pending_bytes"],
                         prefetched)
        for tier in ("device", "pinned", "host"):
            label = f'{{tier="{tier}"}}'
            self.assertLessEqual(metrics["comoe_expert_cache_bytes" + label],
                                 metrics["comoe_expert_cache_capacity_bytes" + label])
        self.assertEqual(metrics['comoe_device_memory_bytes{pool="expert_cache"}'] +
                         metrics['comoe_device_memory_bytes{pool="staging"}'],
                         metrics['comoe_expert_cache_capacity_bytes{tier="device"}'])

    def test_clients_that_leave_while_copies_are_under_way(self):
        """Real clock, a slow link and experts on disk and host: a step is mostly copies."""
        with Server("--max-sequences", "16") as server:
            expected = server.inference.Generate(request(max_tokens=24, sampling={"temperature": 0.0}),
                                                 timeout=CALL_TIMEOUT_S).choices[0].text
        with Server(*TIERS, "--policy", "simple", "--emulated-clock", "real", "--emulated", "pcie3x8", "--pinned-bytes",
                    "2MiB", "--host-lane", "on") as server:
            for _ in range(3):
                begun = [Begun(server.inference.GenerateStream(
                    stream_request(prompts()[i], max_tokens=200, stopping={"ignore_eos": True}),
                    timeout=CALL_TIMEOUT_S)) for i in range(8)]
                for stream in begun:
                    stream.cancel()
                self.assertTrue(harness.eventually(server.idle, timeout_s=10), server.load_gauges())
            killed = subprocess.Popen([harness.BINARY, "generate", "--server", server.address, "--prompt", "Once",
                                       "--max-tokens", "400"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.assertTrue(harness.eventually(lambda: not server.idle()))
            killed.kill()
            killed.wait()
            self.assertTrue(harness.eventually(server.idle, timeout_s=10), server.load_gauges())
            answer = server.inference.Generate(request(max_tokens=24, sampling={"temperature": 0.0}),
                                               timeout=CALL_TIMEOUT_S)
            self.assertEqual(answer.choices[0].text, expected)
            self.assertEqual(server.metrics()["comoe_expert_copies_failed_total"], 0)

    def test_timeline(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "timeline.json")
            done = harness.run_comoe("generate", "--model", str(harness.MODEL), "--device", "emulated", "--policy",
                                     "simple", "--prompt", "Call me Ishmael.", "--max-tokens", "12", "--greedy",
                                     "--timeline", path, "--timeline-steps", "8", "--quiet")
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
        lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.assertLessEqual({"steps", "compute", "copy-demand"}, lanes)
        names = {event["name"] for event in events}
        self.assertTrue(any(name.startswith("copy: demand L") for name in names), names)
        self.assertTrue(any(name.startswith("wait: demand_copy") for name in names), names)
        self.assertEqual(sum(event["name"].startswith("step ") for event in events), 8)


if __name__ == "__main__":
    unittest.main()
