"""Many clients at once, the badly behaved among them: each gets what it would get alone, and nothing stays behind."""

import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc

import harness
import raw_http2
from harness import CALL_TIMEOUT_S, SETTLE_S, Begun, Server, Stream, inference_pb2, request, stream_request

Code = grpc.StatusCode
LONG = 1900  # tokens: a second of work and more, and it fits the context
FOREVER = {"ignore_eos": True}


def open_stream(server, *args, **kwargs):
    return server.inference.GenerateStream(stream_request(*args, **kwargs), timeout=CALL_TIMEOUT_S)


def read_all(calls):
    """Streams of the calls, each read by a thread of its own."""
    streams = [None] * len(calls)

    def read(i):
        streams[i] = Stream(calls[i])
    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return streams


class Crowd(unittest.TestCase):
    def assert_well_formed(self, stream, code=Code.OK):
        self.assertEqual(stream.code, code, stream.details)
        self.assertEqual((len(stream.started), len(stream.finished), stream.last_event), (1, 1, "finished"))
        counts = [delta.usage.completion_tokens for delta in stream.deltas]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(stream.finished[0].usage.completion_tokens, len(stream.token_ids))

    def assert_idle(self, server, timeout_s=SETTLE_S):
        self.assertTrue(harness.eventually(server.idle, timeout_s), f"a request is still there: {server.load_gauges()}")


class SixtyFourTest(Crowd):
    def test_each_of_64_gets_what_it_gets_alone(self):
        rng = random.Random(64)
        messages = []
        for i in range(64):
            sampling = {"temperature": 0} if i % 2 else {"seed": i, "temperature": 0.9, "top_p": 0.95}
            messages.append(stream_request(f"Letter number {i} begins: " + "dear " * rng.randrange(60),
                                           rng.randrange(20, 90), sampling=sampling, stopping=FOREVER))
        with Server() as server:
            alone = [Stream(server.inference.GenerateStream(message, timeout=CALL_TIMEOUT_S)) for message in messages]
            together = read_all([server.inference.GenerateStream(message, timeout=CALL_TIMEOUT_S)
                                 for message in messages])
            for message, expected, stream in zip(messages, alone, together):
                self.assert_well_formed(stream)
                self.assertEqual(stream.text, expected.text, message)
                self.assertEqual(stream.token_ids, expected.token_ids, message)
            self.assert_idle(server)
            metrics = server.metrics()
        steps = {limit: metrics[f'comoe_step_sequences_bucket{{le="{limit}"}}'] for limit in ("8", "16", "+Inf")}
        self.assertGreater(steps["16"], steps["8"], "they did not run together")
        self.assertEqual(steps["16"], steps["+Inf"], "more than 16 ran together")


class KilledClient:
    """A client process with streams; see doomed_client.py."""

    def __init__(self, address):
        self._folder = tempfile.TemporaryDirectory(prefix="comoe-doomed-")
        script = pathlib.Path(__file__).with_name("doomed_client.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert self._process.stdout.readline() == "ready\n"

    def send(self, message, count):
        path = pathlib.Path(self._folder.name) / "request"
        path.write_bytes(message.SerializeToString())
        self._process.stdin.write(f"{path} {count}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "sent\n"

    def wait_begun(self, count):
        for _ in range(count):
            assert self._process.stdout.readline() == "begun\n"

    def kill(self):
        self._process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._folder.cleanup()


class KilledClientsTest(Crowd):
    """Two processes with three streams each are killed at once, while other streams run on."""
    PROCESSES = 2
    STREAMS = 3
    SURVIVORS = [stream_request("A survivor: ", LONG, sampling=sampling, stopping=FOREVER)
                 for sampling in ({"temperature": 0}, {"seed": 7, "temperature": 0.8})]

    @classmethod
    def setUpClass(cls):
        with Server() as server:
            cls.texts = [Stream(server.inference.GenerateStream(message, timeout=CALL_TIMEOUT_S)).text
                         for message in cls.SURVIVORS]

    def only_survivors(self, server):
        gauges = server.load_gauges()
        return (gauges["comoe_requests_running"] == len(self.SURVIVORS) and gauges["comoe_requests_waiting"] == 0
                and gauges["comoe_requests_waiting_tokens"] == 0)

    def kill_beside_survivors(self, flags, doomed, ready):
        """ready(server, clients) waits until the doomed streams are where they are to be killed."""
        total = self.PROCESSES * self.STREAMS
        with Server(*flags) as server:
            clients = [KilledClient(server.address) for _ in range(self.PROCESSES)]
            try:
                survivors = [Begun(server.inference.GenerateStream(message, timeout=CALL_TIMEOUT_S))
                             for message in self.SURVIVORS]
                before = server.metrics()
                for client in clients:
                    client.send(doomed, self.STREAMS)
                ready(server, clients)
                for client in clients:
                    client.kill()
                cancelled = 'comoe_stream_aborts_total{reason="client_cancel"}'
                self.assertTrue(harness.eventually(
                    lambda: server.metrics()[cancelled] == before[cancelled] + total), server.load_gauges())
                self.assertTrue(harness.eventually(lambda: self.only_survivors(server), SETTLE_S),
                                f"somebody who left is still there, or a survivor is not: {server.load_gauges()}")
                after = server.metrics()
                streams = read_all(survivors)
                self.assert_idle(server)
            finally:
                for client in clients:
                    client.__exit__()
        for stream, text in zip(streams, self.texts):
            self.assert_well_formed(stream)
            self.assertEqual(stream.text, text)
        first_tokens = "comoe_time_to_first_token_seconds_count"
        return after[first_tokens] - before[first_tokens]

    def test_while_they_wait(self):
        def ready(server, _):
            self.assertTrue(harness.eventually(
                lambda: server.metrics()["comoe_requests_waiting"] == self.PROCESSES * self.STREAMS))
        doomed = stream_request("Doomed", LONG, stopping=FOREVER)
        self.assertEqual(self.kill_beside_survivors(["--max-sequences", "2"], doomed, ready), 0)

    def test_while_their_prompts_are_computed(self):
        def ready(server, _):
            self.assertTrue(harness.eventually(
                lambda: server.metrics()["comoe_requests_running"] >= 2 + self.PROCESSES * self.STREAMS))
        doomed = stream_request(max_tokens=20, tokens={"ids": [100 + i % 991 for i in range(1900)]}, stopping=FOREVER)
        # A prompt of 1,900 tokens takes hundreds of steps.
        self.assertEqual(self.kill_beside_survivors(["--max-chunk-tokens", "4", "--no-prefix-cache"], doomed, ready), 0)

    def test_while_they_generate(self):
        def ready(_, clients):
            for client in clients:
                client.wait_begun(self.STREAMS)
        doomed = stream_request("Doomed", LONG, stopping=FOREVER)
        self.assertEqual(self.kill_beside_survivors([], doomed, ready), self.PROCESSES * self.STREAMS)


class CancelTest(Crowd):
    def test_a_cancel_is_heard_at_any_moment(self):
        """Among them those in which a write fails before gRPC reports the cancel."""
        with Server() as server:
            for streams in [1] * 100 + [16] * 5:
                before = server.metrics()["comoe_generated_tokens_total"]
                calls = [open_stream(server, max_tokens=LONG, stopping=FOREVER) for _ in range(streams)]
                calls = [Begun(call) for call in calls]
                for call in calls:
                    call.cancel()
                self.assert_idle(server, 60)
                generated = server.metrics()["comoe_generated_tokens_total"] - before
                self.assertLess(generated, LONG, f"of {streams}, one ran to its end though its client had left")


class UnreadTest(Crowd):
    MAX_GROWTH_BYTES = 24 << 20

    def test_streams_that_nobody_reads_are_ended_and_cost_little(self):
        bulky = stream_request(max_tokens=1000, stopping=FOREVER, output={"logprobs": 20, "return_token_pieces": True})
        slow = 'comoe_stream_aborts_total{reason="slow_consumer"}'
        with Server("--stream-stall-timeout", "2") as server:
            expected = Stream(open_stream(server, max_tokens=LONG, sampling={"seed": 3}, stopping=FOREVER))
            memory = server.metrics()["process_resident_memory_bytes"]
            unread = [raw_http2.UnreadStream(server.address, bulky, grants_window=i % 2 == 1) for i in range(6)]
            try:
                reader = Stream(open_stream(server, max_tokens=LONG, sampling={"seed": 3}, stopping=FOREVER))
                self.assertTrue(harness.eventually(lambda: server.metrics()[slow] == len(unread)), server.load_gauges())
                for stream in unread[::2]:
                    self.assertTrue(stream.wait_reset(10))
                    self.assertEqual(stream.data_bytes, 0)
                self.assert_idle(server)
                growth = server.metrics()["process_resident_memory_bytes"] - memory
            finally:
                for stream in unread:
                    stream.__exit__()
            self.assertEqual(server.log.count("its reader takes nothing"), len(unread))
        self.assert_well_formed(reader)
        self.assertEqual(reader.text, expected.text)
        if harness.SANITIZED:
            print("NOT CHECKED under a sanitizer: memory of unread streams (freed memory is kept back)")
        else:
            self.assertLess(growth, self.MAX_GROWTH_BYTES)


class DrainTest(Crowd):
    def assert_drained(self, stream):
        self.assertEqual((stream.code, stream.last_event, len(stream.finished)), (Code.UNAVAILABLE, "finished", 1))
        self.assertEqual(stream.finished[0].finish_reason, inference_pb2.FINISH_REASON_DRAINING)

    def assert_refuses(self, server):
        with self.assertRaises(grpc.RpcError) as caught:
            server.inference.Generate(request(), timeout=CALL_TIMEOUT_S)
        self.assertEqual(caught.exception.code(), Code.UNAVAILABLE)

    def test_32_running_streams_are_ended(self):
        with Server("--drain-timeout", "0", "--max-sequences", "32") as server:
            calls = [open_stream(server, max_tokens=LONG, stopping=FOREVER) for _ in range(32)]
            calls = [Begun(call) for call in calls]
            server.signal()
            streams = read_all(calls)
            self.assertEqual(server.wait_exit(), 0, server.log)
        for stream in streams:
            self.assert_drained(stream)

    def test_running_streams_may_finish(self):
        long = {"max_tokens": 40 if harness.SANITIZED else 160, "sampling": {"seed": 1}, "stopping": FOREVER}
        with Server(*harness.SLOW, "--max-sequences", "4", "--drain-timeout", "600") as server:
            alone = Stream(open_stream(server, **long))
            running = [open_stream(server, **long) for _ in range(4)]
            running = [Begun(call) for call in running]
            waiting = [open_stream(server, max_tokens=5) for _ in range(4)]
            self.assertTrue(harness.eventually(lambda: server.metrics()["comoe_requests_waiting"] == 4))
            server.signal()
            running, waiting = read_all(running), read_all(waiting)
            self.assertEqual(server.wait_exit(), 0, server.log)
        for stream in running:
            self.assert_well_formed(stream)
            self.assertEqual(stream.text, alone.text)
        for stream in waiting:
            self.assert_drained(stream)
            self.assertEqual(stream.started, [])

    def test_requests_are_served_in_the_delay(self):
        # An hour, which a second signal ends: there is no clock to race against.
        with Server("--drain-delay", "3600", "--drain-timeout", "600") as server:
            server.signal()
            self.assertTrue(harness.eventually(lambda: server.health() == "NOT_SERVING"))
            answer = server.inference.Generate(request(max_tokens=5, stopping=FOREVER), timeout=CALL_TIMEOUT_S)
            self.assertEqual(len(answer.choices[0].token_ids), 5)
            self.assertEqual(server.health(), "NOT_SERVING")
            call = Begun(open_stream(server, max_tokens=LONG, stopping=FOREVER))
            server.signal()
            self.assertTrue(harness.eventually(lambda: "stopping" in server.log))
            self.assertEqual(Stream(call).code, Code.OK)
            self.assertEqual(server.wait_exit(), 0, server.log)

    def test_the_delay_ends_by_itself(self):
        with Server("--drain-delay", "1") as server:
            begin = time.monotonic()
            server.signal()
            self.assertEqual(server.wait_exit(), 0, server.log)
            self.assertGreaterEqual(time.monotonic() - begin, 1)

    def test_by_rpc(self):
        with Server() as server:
            call = Begun(open_stream(server, max_tokens=LONG, stopping=FOREVER))
            drain = harness.admin_pb2.DrainRequest(timeout={"seconds": 60})
            server.admin.Drain(drain, timeout=CALL_TIMEOUT_S)
            self.assertTrue(harness.eventually(lambda: server.health() == "NOT_SERVING"))
            self.assert_refuses(server)
            self.assertEqual(Stream(call).code, Code.OK)
            self.assertEqual(server.wait_exit(), 0, server.log)

    def test_by_rpc_at_once(self):
        with Server("--drain-timeout", "60") as server:
            call = Begun(open_stream(server, max_tokens=LONG, stopping=FOREVER))
            server.admin.Drain(harness.admin_pb2.DrainRequest(timeout={}), timeout=CALL_TIMEOUT_S)
            self.assert_drained(Stream(call))
            self.assertEqual(server.wait_exit(), 0, server.log)


class MemoryTest(Crowd):
    def test_those_who_lose_their_memory_still_say_the_same(self):
        messages = [stream_request(f"Story {i}: ", 120 + 8 * i, stopping=FOREVER, stream={"include_timing": True},
                                   sampling={"temperature": 0} if i % 2 else {"seed": i, "temperature": 0.9})
                    for i in range(16)]
        with Server() as server:
            alone = [Stream(server.inference.GenerateStream(message, timeout=CALL_TIMEOUT_S)) for message in messages]
        with Server("--kv-bytes", "5MiB", "--max-sequences", "16") as server:  # 16 of these take more than twice that
            streams = read_all([server.inference.GenerateStream(message, timeout=CALL_TIMEOUT_S)
                                for message in messages])
            self.assert_idle(server)
            preemptions = server.metrics()['comoe_preemptions_total{kind="recompute"}']
        for expected, stream in zip(alone, streams):
            self.assert_well_formed(stream)
            self.assertEqual(stream.text, expected.text)
        self.assertGreater(preemptions, 0)
        self.assertEqual(sum(stream.finished[0].timing.preemptions for stream in streams), preemptions)

    def test_beginnings_of_prompts_are_shared_within_a_salt(self):
        prompt = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12

        def ask(server, salt):
            return server.inference.Generate(request(prompt, 24, sampling={"seed": 5}, cache_salt=salt),
                                             timeout=CALL_TIMEOUT_S)
        with Server() as server:
            answers = [ask(server, salt) for salt in ("", "", "other", "other")]
            flushed = server.admin.FlushCache(harness.admin_pb2.FlushCacheRequest(), timeout=CALL_TIMEOUT_S)
            answers.append(ask(server, ""))
        cached = [answer.usage.cached_prompt_tokens for answer in answers]
        self.assertEqual([tokens > 0 for tokens in cached], [False, True, False, True, False], cached)
        self.assertGreater(flushed.flushed_blocks, 0)
        self.assertGreater(cached[1], answers[0].usage.prompt_tokens // 2)
        self.assertEqual(len({answer.choices[0].text for answer in answers}), 1)


class PriorityTest(Crowd):
    def test_a_higher_priority_overtakes_those_who_wait(self):
        with Server(*harness.SLOW, "--max-sequences", "1") as server:
            running = Begun(open_stream(server, max_tokens=LONG, stopping=FOREVER))
            calls = []
            for request_id, priority in (("low-1", -5), ("low-2", -5), ("usual", 0), ("high-1", 50), ("high-2", 50)):
                calls.append(open_stream(server, max_tokens=30, request_id=request_id, priority=priority))
                self.assertTrue(harness.eventually(lambda: server.metrics()["comoe_requests_waiting"] == len(calls)))
            running.cancel()
            for stream in read_all(calls):
                self.assert_well_formed(stream)
            self.assert_idle(server)
            ends = re.findall(r"request ((?:low|usual|high)\S*): GenerateStream OK", server.log)
        self.assertEqual(ends, ["high-1", "high-2", "usual", "low-1", "low-2"])


if __name__ == "__main__":
    unittest.main()
