"""How a server starts, is watched, and ends."""

import os
import shutil
import signal
import subprocess
import threading
import time
import unittest

import grpc

import harness
from harness import CALL_TIMEOUT_S, Server, Stream, inference_pb2, request, stream_request

Code = grpc.StatusCode
LONG = 1900


def long_stream(server):
    """A stream that has begun and takes a while."""
    call = server.inference.GenerateStream(stream_request(max_tokens=LONG, stopping={"ignore_eos": True}),
                                           timeout=CALL_TIMEOUT_S)
    while next(call).WhichOneof("event") != "delta":
        pass
    return call


class StartTest(unittest.TestCase):
    def test_health_goes_from_not_serving_to_serving(self):
        with Server(wait=False) as server:
            seen = []
            while not seen or seen[-1] != "SERVING":
                seen.append(server.health())
            self.assertLessEqual(set(seen), {"NOT_SERVING", "SERVING"})
            self.assertEqual(server.health(""), "SERVING")
            server.wait_serving()
            check = harness.run_comoe("health", "--server", server.address)
            self.assertEqual((check.returncode, check.stdout), (0, "SERVING\n"), check.stderr)
            check = harness.run_comoe("health", "--server", server.address, "--service", "no.such.Service")
            self.assertNotEqual(check.returncode, 0)
        check = harness.run_comoe("health", "--server", server.address)
        self.assertNotEqual(check.returncode, 0)
        self.assertIn(server.address, check.stderr)

    def test_a_port_is_not_shared(self):
        with Server() as server:
            for flags in (["--listen", server.address, "--metrics-listen", ""],
                          ["--listen", "127.0.0.1:0", "--metrics-listen",
                           server.metrics_address.split("/")[2]]):
                second = harness.run_comoe("serve", "--model", str(harness.MODEL), *flags)
                self.assertNotEqual(second.returncode, 0)
                self.assertIn("another process has the port", second.stderr)
                self.assertEqual(second.stdout, "")
            self.assertEqual(server.health(), "SERVING")

    def test_a_model_that_is_not_there_is_one_clear_error(self):
        started = harness.run_comoe("serve", "--model", "/nonexistent", "--listen", "127.0.0.1:0",
                                    "--metrics-listen", "127.0.0.1:0")
        self.assertEqual(started.returncode, 1)
        self.assertIn("/nonexistent", started.stderr)

    def test_settings_out_of_range_are_named(self):
        for flag, value in (("--listen", "nowhere"), ("--max-waiting", "-1"), ("--default-max-tokens", "0"),
                            ("--drain-timeout", "-1"), ("--log-level", "loud")):
            started = harness.run_comoe("serve", "--model", str(harness.MODEL), "--metrics-listen", "", flag, value)
            self.assertNotEqual(started.returncode, 0, flag)
            self.assertIn(flag.lstrip("-"), started.stderr)

    def test_reflection_is_off_when_others_can_reach_the_port(self):
        with Server(listen="0.0.0.0:0") as server:
            with self.assertRaises(grpc.RpcError) as caught:
                harness.comoe_client.Client(server.channel).services()
            self.assertEqual(caught.exception.code(), Code.UNIMPLEMENTED)
            self.assertEqual(server.health(), "SERVING")


class EndTest(unittest.TestCase):
    def test_sigterm_is_heard_while_the_model_loads(self):
        with Server(wait=False) as server:
            server.signal()
            self.assertEqual(server.wait_exit(), 0, server.log)

    def test_sigterm_ends_a_stream_with_a_terminal_event_and_exit_0(self):
        with Server("--drain-timeout", "0", "--max-sequences", "1") as server:
            call = long_stream(server)
            queued = server.inference.GenerateStream(stream_request(max_tokens=5), timeout=CALL_TIMEOUT_S)
            harness.eventually(lambda: server.metrics()["comoe_requests_waiting"] == 1)
            server.signal()
            streams = [Stream(call), Stream(queued)]
            self.assertEqual(server.wait_exit(), 0, server.log)
        for stream in streams:
            self.assertEqual(stream.code, Code.UNAVAILABLE)
            self.assertEqual(stream.last_event, "finished")
            self.assertEqual(stream.finished[0].finish_reason, inference_pb2.FINISH_REASON_DRAINING)

    def test_many_live_streams_all_get_a_terminal_event(self):
        with Server("--drain-timeout", "0", "--max-sequences", "1") as server:
            calls = [long_stream(server)]
            calls += [server.inference.GenerateStream(stream_request(max_tokens=LONG), timeout=CALL_TIMEOUT_S)
                      for _ in range(31)]
            harness.eventually(lambda: server.metrics()["comoe_requests_waiting"] == 31)
            server.signal(signal.SIGINT)
            streams = [Stream(call) for call in calls]
            self.assertEqual(server.wait_exit(), 0, server.log)
        self.assertEqual([stream.last_event for stream in streams], ["finished"] * 32)

    def test_a_running_stream_may_finish_while_new_requests_are_refused(self):
        with Server("--drain-timeout", "60") as server:
            call = long_stream(server)
            server.signal()
            self.assertTrue(harness.eventually(lambda: server.health() == "NOT_SERVING", 10))
            with self.assertRaises(grpc.RpcError) as caught:
                server.inference.Generate(request(), timeout=CALL_TIMEOUT_S)
            self.assertEqual(caught.exception.code(), Code.UNAVAILABLE)
            stream = Stream(call)
            self.assertEqual((stream.code, stream.finished[0].finish_reason),
                             (Code.OK, inference_pb2.FINISH_REASON_MAX_TOKENS))
            self.assertEqual(server.wait_exit(), 0, server.log)

    def test_a_second_signal_hurries(self):
        with Server("--drain-timeout", "600") as server:
            call = long_stream(server)
            server.signal()
            self.assertTrue(harness.eventually(lambda: "stopping" in server.log, 10))
            time.sleep(0.05)  # two signals at once are one to the kernel
            server.signal()
            stream = Stream(call)
            self.assertEqual(server.wait_exit(), 0, server.log)
            self.assertEqual(stream.last_event, "finished")


class QueueTest(unittest.TestCase):
    def test_a_full_queue_refuses_and_recovers(self):
        with Server("--max-waiting", "1", "--max-sequences", "1") as server:
            running = long_stream(server)
            waiting = server.inference.GenerateStream(stream_request(max_tokens=3), timeout=CALL_TIMEOUT_S)
            self.assertTrue(harness.eventually(lambda: server.metrics()["comoe_requests_waiting"] == 1))
            with self.assertRaises(grpc.RpcError) as caught:
                server.inference.Generate(request(), timeout=CALL_TIMEOUT_S)
            self.assertEqual(caught.exception.code(), Code.RESOURCE_EXHAUSTED)
            self.assertEqual(server.metrics()['comoe_request_rejections_total{reason="queue_full"}'], 1)
            running.cancel()
            self.assertEqual(Stream(waiting).code, Code.OK)


class MetricsTest(unittest.TestCase):
    def test_metrics_move_and_add_up(self):
        with Server() as server:
            before = server.metrics()
            server.inference.Generate(request(max_tokens=8), timeout=CALL_TIMEOUT_S)
            Stream(server.inference.GenerateStream(stream_request(max_tokens=8), timeout=CALL_TIMEOUT_S))
            refused = request(sampling={"top_p": 5})
            threads = []
            for message in (refused, request(sampling={"n": 9}), request(model="other"), request("word " * 20000)):
                def call(message=message):
                    with self.assertRaises(grpc.RpcError):
                        server.inference.Generate(message, timeout=CALL_TIMEOUT_S)
                threads.append(threading.Thread(target=call))
                threads[-1].start()
            for thread in threads:
                thread.join()
            leaver = long_stream(server)
            leaver.cancel()
            late = Stream(server.inference.GenerateStream(
                stream_request(max_tokens=LONG, stopping={"ignore_eos": True}), timeout=0.1))
            self.assertEqual(late.code, Code.DEADLINE_EXCEEDED)
            server.models.GetModel(harness.model_pb2.GetModelRequest(), timeout=CALL_TIMEOUT_S)
            sent = 2 + 4 + 2 + 1

            def total(metrics):
                return sum(value for series, value in metrics.items() if series.startswith("comoe_requests_total{"))
            self.assertTrue(harness.eventually(lambda: total(server.metrics()) == sent),
                            f"{total(server.metrics())} counted, {sent} sent")
            after = server.metrics()
            for reason in ("invalid", "not_built", "unknown_model", "too_long"):
                self.assertEqual(after[f'comoe_request_rejections_total{{reason="{reason}"}}'], 1, reason)
            for reason in ("client_cancel", "deadline"):
                self.assertEqual(after[f'comoe_stream_aborts_total{{reason="{reason}"}}'], 1, reason)
            for series in ("comoe_time_to_first_token_seconds_count", "comoe_inter_token_latency_seconds_count",
                           "comoe_time_per_output_token_seconds_count", "comoe_e2e_seconds_count",
                           "comoe_generated_tokens_total"):
                self.assertGreater(after[series], before[series], series)
            for series in ("process_resident_memory_bytes", "process_open_fds", "comoe_model_load_seconds"):
                self.assertGreater(after[series], 0, series)
            self.assertTrue(any(series.startswith("comoe_build_info{") for series in after))
            self.assertTrue(any(series.startswith("comoe_model_info{") for series in after))

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
