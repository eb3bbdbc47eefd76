"""That the metrics are those of docs/METRICS.md, move with what happens, and add up."""

import collections
import os
import random
import re
import shutil
import socket
import subprocess
import threading
import time
import unittest

import grpc

import harness
import raw_http2
import traffic
from harness import CALL_TIMEOUT_S, Begun, Server, Stream, request, stream_request

Code = grpc.StatusCode
Family = collections.namedtuple("Family", "type labels")
OURS = re.compile(r"(comoe|grpc_server)_")
CONSTANT = {"comoe_build_info", "comoe_model_info", "comoe_model_load_seconds"}


def name_of(series):
    return series.partition("{")[0]


def total(metrics, name):
    """Sum over all labels; of a histogram, name its _count."""
    return sum(value for series, value in metrics.items() if name_of(series) == name)


def exposed_families(text):
    """{name: Family} of what we export."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    families = {}
    for name, kind in types.items():
        if OURS.match(name):
            parts = "_(?:bucket|sum|count)" if kind == "histogram" else ""
            labels = {label for series in re.findall(rf"^{name}{parts}{{(.*)}} ", text, re.MULTILINE)
                      for label in re.findall(r'(\w+)="', series)}
            families[name] = Family(kind, frozenset(labels - {"le"}))
    return families


def documented_families():
    text = (harness.ROOT / "docs/METRICS.md").read_text().partition("## Experts in tiers")[0]  # offload_test.py's
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*)\|", text, re.MULTILINE)
    return {name: Family(kind, frozenset(label.strip() for label in labels.split(",") if label.strip()))
            for name, kind, labels in rows}


def movement(families, metrics):
    """{family: a number that changes when it moves}"""
    return {name: total(metrics, name + "_count" if family.type == "histogram" else name)
            for name, family in families.items()}


class Watch:
    """Scrapes again and again; which families have had two values or more. Use as a context."""

    def __init__(self, server):
        self._server = server
        self._values = collections.defaultdict(set)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def look(self):
        text = self._server.scrape()
        for name, value in movement(exposed_families(text), harness.parse_metrics(text)).items():
            self._values[name].add(value)

    def _run(self):
        while not self._stop.wait(0.1):
            self.look()

    @property
    def moved(self):
        # One that appeared later, such as requests_total, was nothing before.
        return {name for name, values in self._values.items() if len(values | {0}) > 1 and name not in CONSTANT}

    def __enter__(self):
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self.look()


class MixedRunTest(unittest.TestCase):
    THREADS = 8
    ROUNDS = 2

    def run_mixture(self, channel):
        """How many generations gave a token."""
        tokens = [0] * self.THREADS
        errors = []

        def run(i):
            client = traffic.Traffic(channel, random.Random(i), f"client-{i}")
            calls = self.ROUNDS * (2 * client.good() + client.bad() + client.ended_early() + client.others())
            random.Random(i).shuffle(calls)
            try:
                for call in calls:
                    tokens[i] += call()
            except (AssertionError, grpc.RpcError) as error:
                errors.append(f"{call.__name__}: {error}")
        threads = [threading.Thread(target=run, args=(i,)) for i in range(self.THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        # Alone, so that it is known which of them gave tokens.
        client = traffic.Traffic(channel, random.Random(-1), "late")
        return sum(tokens) + sum(client.late() for _ in range(3))

    def test_a_mixed_run_adds_up(self):
        with Server("--max-sequences", "8") as server, Watch(server) as watch:
            counted = traffic.CountingChannel(server.channel)
            # The engine's times are counted when it wakes.
            traffic.Traffic(counted.channel, random.Random(0), "before").unary()
            begin, before = time.monotonic(), server.metrics()
            tokens = 1 + self.run_mixture(counted.channel)
            unread = stream_request(max_tokens=40, stopping={"ignore_eos": True})
            with raw_http2.UnreadStream(server.address, unread):
                self.assertTrue(harness.eventually(lambda: server.metrics()["comoe_stream_backlog_tokens"] == 40))
                watch.look()
            tokens += 1
            self.assertTrue(harness.eventually(lambda: server.metrics()["comoe_stream_backlog_tokens"] == 0))
            traffic.Traffic(counted.channel, random.Random(0), "after").unary()
            tokens += 1
            end, after = time.monotonic(), server.metrics()
            blocks = harness.admin_pb2_grpc.AdminServiceStub(counted.channel).GetLoads(
                harness.admin_pb2.GetLoadsRequest(), timeout=CALL_TIMEOUT_S).total_kv_blocks
            sent = counted.sent + 1  # the one that was not read
            self.assertGreaterEqual(sent, 300)
            self.assertTrue(harness.eventually(lambda: total(server.metrics(), "comoe_requests_total") >= sent))
            text = server.scrape()
        metrics = harness.parse_metrics(text)
        self.assertEqual(total(metrics, "comoe_requests_total"), sent)
        self.assertEqual(total(metrics, "grpc_server_handled_total"), sent)
        self.assertEqual(total(metrics, "grpc_server_started_total"), sent)
        self.assertEqual(total(metrics, "grpc_server_handling_seconds_count"), sent)
        self.assertEqual(metrics["comoe_time_to_first_token_seconds_count"], tokens)
        self.assertEqual(total(metrics, "comoe_kv_blocks"), blocks)
        engine_s = total(after, "comoe_engine_busy_seconds_total") - total(before, "comoe_engine_busy_seconds_total")
        self.assertAlmostEqual(engine_s / (end - begin), 1, delta=0.02)
        self.assert_documented(text)
        self.assert_all_moved(watch.moved)

    def assert_documented(self, text):
        exposed, documented = exposed_families(text), documented_families()
        self.assertEqual(sorted(exposed), sorted(documented))
        for name, family in exposed.items():
            self.assertEqual(family, documented[name], name)

    def assert_all_moved(self, moved):
        """What a healthy, roomy server cannot show is shown by others."""
        with Server("--kv-bytes", "4MiB", "--max-connections", "1") as server, Watch(server) as watch:
            calls = [server.inference.GenerateStream(stream_request(max_tokens=300, stopping={"ignore_eos": True}),
                                                     timeout=CALL_TIMEOUT_S) for _ in range(4)]
            host, _, port = server.address.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=10) as refused:
                self.assertEqual(refused.recv(1), b"")
            for call in calls:
                self.assertEqual(Stream(call).code, Code.OK)
        extra = {"comoe_preemptions_total", "comoe_connections_refused_total"}
        self.assertLessEqual(extra, watch.moved)
        self.assertEqual(set(documented_families()) - moved - extra - CONSTANT, set())


class ReasonsTest(unittest.TestCase):
    def test_each_refusal_and_early_end_counts_once_under_its_reason(self):
        with Server(*harness.SLOW, "--max-sequences", "1", "--max-waiting", "1", "--drain-timeout", "60") as server:
            client = traffic.Traffic(server.channel, random.Random(1), "client")
            for call in (*client.bad(), client.aborted, client.cancelled):
                call()
            # One choice, as no more may wait here. Long, as the server takes a client that leaves 28 ms before a
            # deadline of 0.4 s for one that cancels: on a busy machine the way there takes that long.
            client.late(choices=1, timeout=4)
            running = Begun(server.inference.GenerateStream(
                stream_request(max_tokens=1900, request_id="running", stopping={"ignore_eos": True}),
                timeout=CALL_TIMEOUT_S))
            waiting = server.inference.GenerateStream(stream_request(max_tokens=2), timeout=CALL_TIMEOUT_S)
            self.assertTrue(harness.eventually(lambda: server.metrics()["comoe_requests_waiting"] == 1))
            for message, code in ((request(), Code.RESOURCE_EXHAUSTED),
                                  (request(request_id="running"), Code.ALREADY_EXISTS)):
                with self.assertRaises(grpc.RpcError) as caught:
                    server.inference.Generate(message, timeout=CALL_TIMEOUT_S)
                self.assertEqual(caught.exception.code(), code)
            server.signal()
            self.assertTrue(harness.eventually(lambda: server.health() == "NOT_SERVING"))
            with self.assertRaises(grpc.RpcError):
                server.inference.Generate(request(), timeout=CALL_TIMEOUT_S)
            self.assertEqual(Stream(waiting).code, Code.UNAVAILABLE)
            metrics = server.metrics()
            running.cancel()
            for name, expected in (
                    ("comoe_request_rejections_total", {"invalid": 1, "unknown_model": 1, "not_built": 1, "too_long": 1,
                                                        "queue_full": 1, "duplicate_id": 1, "draining": 1}),
                    ("comoe_stream_aborts_total", {"abort": 1, "client_cancel": 1, "deadline": 1, "drain": 1})):
                found = {re.search(r'reason="(\w+)"', series)[1]: value for series, value in metrics.items()
                         if name_of(series) == name and value}
                self.assertEqual(found, expected)
            for series in ("process_resident_memory_bytes", "process_open_fds"):
                self.assertGreater(metrics[series], 0, series)


class PromtoolTest(unittest.TestCase):
    def test_promtool_accepts_them(self):
        promtool = shutil.which("promtool") or shutil.which("promtool", path=str(harness.ROOT / "build/tools"))
        if promtool is None:
            if os.environ.get("CI"):
                self.fail("promtool is missing: deploy/install_deps.sh --with tests fetches it")
            self.skipTest("NOT CHECKED: promtool is missing; deploy/install_deps.sh --with tests fetches it")
        with Server() as server:
            server.inference.Generate(request(max_tokens=4), timeout=CALL_TIMEOUT_S)
            checked = subprocess.run([promtool, "check", "metrics"], input=server.scrape(), capture_output=True,
                                     text=True, check=False)
            # Lines about exposer_* are the exporting library's own.
            ours = [line for line in (checked.stdout + checked.stderr).splitlines() if not line.startswith("exposer_")]
            self.assertEqual(ours, [])
            self.assertEqual(checked.returncode, 0)


if __name__ == "__main__":
    unittest.main()
