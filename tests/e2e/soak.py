"""Full load for a while: every answer is right, memory does not grow, and nothing is held when it is over.

    soak.py [--minutes 10] [--clients 32] [--seed 1]

Prints a line every 5 seconds and a summary. Exit code 1 if a call ended as it must not, if the resident memory grew by
more than 1 MiB a minute over the second half, or if a gauge is not back at 0. Flags for the server follow after --.
"""

import argparse
import collections
import random
import sys
import threading
import time

import grpc

import bad_input_test
import harness
import raw_http2
import traffic
from harness import Server, Stream, inference_pb2_grpc, stream_request

SAMPLE_S = 5
MAX_SLOPE_MIB_PER_MINUTE = 1
USED_BLOCKS = 'comoe_kv_blocks{state="used"}'
CHECKED = 24  # requests whose text is known


class Known:
    """Requests whose tokens were learnt on the idle server: under load they are the same."""

    def __init__(self, channel, seed):
        rng = random.Random(seed)
        self._messages = [
            stream_request(f"Known {i}: " + "sea " * rng.randrange(200), rng.randrange(10, 200),
                           sampling={"temperature": 0} if i % 2 else {"seed": i, "temperature": 0.9})
            for i in range(CHECKED)]
        self._token_ids = [self._ask(channel, i).token_ids for i in range(CHECKED)]

    def _ask(self, channel, i):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        return Stream(stub.GenerateStream(self._messages[i], timeout=harness.CALL_TIMEOUT_S))

    def check(self, channel, rng):
        i = rng.randrange(CHECKED)
        stream = self._ask(channel, i)
        assert stream.code == grpc.StatusCode.OK, f"{stream.code}: {stream.details}"
        assert stream.token_ids == self._token_ids[i], f"known request {i} has other tokens than on the idle server"
        return 1


class Load:
    """The clients, each a thread with a connection of its own."""

    def __init__(self, server, known, clients, seed):
        self._server = server
        self._known = known
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.calls = collections.Counter()  # by name; changed under the lock
        self.failures = []
        self._threads = [threading.Thread(target=self._run, args=(i, random.Random(f"{seed}/{i}")))
                         for i in range(clients)]

    def _unread(self, rng):
        """Leaves after a while without having read anything."""
        message = stream_request("Unread", rng.randrange(50, traffic.LONG), stopping=traffic.FOREVER)
        with raw_http2.UnreadStream(self._server.address, message, grants_window=rng.random() < 0.5):
            self._stop.wait(rng.random())

    def _malformed(self, channel, malformed):
        method = channel.unary_unary(bad_input_test.GENERATE)
        for call in [method.future(malformed.make(), timeout=harness.CALL_TIMEOUT_S) for _ in range(20)]:
            assert call.code() in bad_input_test.FloodTest.EXPECTED, f"{call.code()}: {call.details()}"

    def _mixture(self, client, channel, rng):
        """[(weight, name, call)]"""
        malformed = bad_input_test.Malformed(rng.random())
        named = [(4, client.stream), (3, client.long_stream), (3, client.long_prompt), (1, client.late)]
        named += [(1, call) for call in client.good()]
        named += [(0.5, call) for call in client.bad() + client.ended_early() + client.others()]
        return [(weight, call.__name__, call) for weight, call in named] + [
            (4, "known", lambda: self._known.check(channel, rng)),
            (1, "malformed", lambda: self._malformed(channel, malformed)),
            (0.3, "unread", lambda: self._unread(rng))]

    def _run(self, i, rng):
        with grpc.insecure_channel(self._server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            weights, names, calls = zip(*self._mixture(traffic.Traffic(channel, rng, f"client-{i}"), channel, rng))
            while not self._stop.is_set():
                choice = rng.choices(range(len(calls)), weights)[0]
                failure = None
                try:
                    calls[choice]()
                except (AssertionError, grpc.RpcError, OSError) as error:
                    failure = f"{names[choice]}: {error}"
                with self._lock:
                    self.calls[names[choice]] += 1
                    if failure is not None:
                        self.failures.append(failure)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def counts(self):
        with self._lock:
            return sum(self.calls.values()), len(self.failures)


def slope_per_minute(samples):
    """Least squares of [(seconds, value)]."""
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    square = sum((x - mean_x)**2 for x, _ in samples)
    return 60 * sum((x - mean_x) * (y - mean_y) for x, y in samples) / square if square else 0.0


def watch(server, load, minutes):
    """[(seconds, resident MiB)], one sample every few seconds."""
    samples = []
    begin = time.monotonic()
    while time.monotonic() < begin + 60 * minutes:
        time.sleep(SAMPLE_S)
        metrics = server.metrics()
        seconds, memory = time.monotonic() - begin, metrics["process_resident_memory_bytes"] / 2**20
        samples.append((seconds, memory))
        calls, failures = load.counts()
        print(f"{seconds:6.0f} s  {memory:7.1f} MiB  {metrics['comoe_requests_running']:3.0f} running  "
              f"{metrics['comoe_requests_waiting']:3.0f} waiting  "
              f"{metrics[USED_BLOCKS]:5.0f} blocks  "
              f"{metrics['process_open_fds']:4.0f} files  {metrics['comoe_generated_tokens_total']:9.0f} tokens  "
              f"{calls} calls  {failures} failed", flush=True)
    return samples


def main():
    parser = argparse.ArgumentParser(description="Full load for a while; see the head of the file.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="of comoe serve, after --")
    arguments = parser.parse_args()
    with Server("--stream-stall-timeout", "2", *arguments.flags) as server:
        traffic.Traffic(server.channel, random.Random(), "quiet").log_level()  # the harness keeps every line
        known = Known(server.channel, arguments.seed)
        with Load(server, known, arguments.clients, arguments.seed) as load:
            samples = watch(server, load, arguments.minutes)
        problems = load.failures[:20]
        if not harness.eventually(server.idle, 10):
            problems.append(f"something is still held: {server.load_gauges()}")
        server.signal()
        code = server.wait_exit()
        if code != 0:
            problems.append(f"the server's exit code is {code}")
    half = samples[len(samples) // 2:]
    slope = slope_per_minute(half)
    if slope > MAX_SLOPE_MIB_PER_MINUTE and not harness.SANITIZED:
        problems.append(f"memory grows by {slope:.2f} MiB a minute")
    print(f"soak: seed {arguments.seed}, {arguments.minutes:g} minutes, {sum(load.calls.values())} calls, "
          f"{len(load.failures)} failed; second half: {slope:+.2f} MiB a minute, "
          f"{min(y for _, y in half):.1f} to {max(y for _, y in half):.1f} MiB")
    print("soak: " + ", ".join(f"{name} {count}" for name, count in sorted(load.calls.items())))
    for problem in problems:
        print(f"soak: FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
