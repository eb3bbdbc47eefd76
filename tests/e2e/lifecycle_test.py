"""How a server starts, is watched, and ends."""

import signal
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
        with Server(*harness.SLOW, "--drain-timeout", "0", "--max-sequences", "1") as server:
            call = long_stream(server)
            queued = server.inference.GenerateStream(stream_request(max_tokens=5), timeout=CALL_TIMEOUT_S)
            self.assertTrue(harness.eventually(lambda: server.metrics()["comoe_requests_waiting"] == 1))
            server.signal()
            streams = [Stream(call), Stream(queued)]
            self.assertEqual(server.wait_exit(), 0, server.log)
        for stream in streams:
            self.assertEqual(stream.code, Code.UNAVAILABLE)
            self.assertEqual(stream.last_event, "finished")
            self.assertEqual(stream.finished[0].finish_reason, inference_pb2.FINISH_REASON_DRAINING)

    def test_many_live_streams_all_get_a_terminal_event(self):
        with Server(*harness.SLOW, "--drain-timeout", "0", "--max-sequences", "1") as server:
            calls = [long_stream(server)]
            calls += [server.inference.GenerateStream(stream_request(max_tokens=LONG), timeout=CALL_TIMEOUT_S)
                      for _ in range(31)]
            self.assertTrue(harness.eventually(lambda: server.metrics()["comoe_requests_waiting"] == 31))
            server.signal(signal.SIGINT)
            streams = [Stream(call) for call in calls]
            self.assertEqual(server.wait_exit(), 0, server.log)
        self.assertEqual([stream.last_event for stream in streams], ["finished"] * 32)

    def test_a_running_stream_may_finish_while_new_requests_are_refused(self):
        with Server("--drain-timeout", "600") as server:
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
        with Server(*harness.SLOW, "--max-waiting", "1", "--max-sequences", "1") as server:
            running = long_stream(server)
            waiting = server.inference.GenerateStream(stream_request(max_tokens=3), timeout=CALL_TIMEOUT_S)
            self.assertTrue(harness.eventually(lambda: server.metrics()["comoe_requests_waiting"] == 1))
            with self.assertRaises(grpc.RpcError) as caught:
                server.inference.Generate(request(), timeout=CALL_TIMEOUT_S)
            self.assertEqual(caught.exception.code(), Code.RESOURCE_EXHAUSTED)
            self.assertEqual(server.metrics()['comoe_request_rejections_total{reason="queue_full"}'], 1)
            running.cancel()
            self.assertEqual(Stream(waiting).code, Code.OK)


if __name__ == "__main__":
    unittest.main()
