"""What the end-to-end tests share: a real `comoe serve` on free ports, stubs made by protoc, metrics as numbers."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import grpc

ROOT = pathlib.Path(os.environ.get("COMOE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BINARY = os.environ.get("COMOE_BINARY", str(ROOT / "build/release/cli/comoe"))
MODEL = ROOT / "models/moe-32x4-demo"
MODEL_NAME = "moe-32x4-demo"
SANITIZED = bool(os.environ.get("COMOE_SANITIZED"))
START_TIMEOUT_S = 120  # under sanitizers, on a busy machine
CALL_TIMEOUT_S = 120
SETTLE_S = 20 if SANITIZED else 1  # how soon after the last request nothing is left of it

LOAD_GAUGES = ("comoe_requests_running", "comoe_requests_waiting", "comoe_requests_waiting_tokens",
               'comoe_kv_blocks{state="used"}', "comoe_stream_backlog_tokens")

_stubs = tempfile.TemporaryDirectory(prefix="comoe-stubs-")


def _make_stubs():
    made = subprocess.run([ROOT / "clients/python/generate_stubs.sh", _stubs.name], capture_output=True, text=True,
                          check=False)
    if made.returncode != 0:
        raise SystemExit(f"e2e: {made.stderr}")
    sys.path[:0] = [_stubs.name, str(ROOT / "clients/python")]


_make_stubs()
# pylint: disable=wrong-import-position
from comoe.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc  # noqa: E402
import comoe  # noqa: E402
import comoe_client  # noqa: E402

__all__ = ["comoe", "admin_pb2", "admin_pb2_grpc", "inference_pb2", "inference_pb2_grpc", "model_pb2", "model_pb2_grpc",
           "comoe_client"]


def run_comoe(*arguments, timeout_s=START_TIMEOUT_S):
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)


def parse_metrics(text):
    """{series: value}"""
    values = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            values[series] = float(value)
    return values


class Server:
    """A running `comoe serve`, and stubs to it. Use as a context: it ends with SIGTERM, or SIGKILL if that fails."""

    def __init__(self, *flags, listen="127.0.0.1:0", wait=True):
        self.process = subprocess.Popen(
            [BINARY, "serve", "--model", str(MODEL), "--listen", listen, "--metrics-listen", "127.0.0.1:0", "--quiet",
             *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._errors = []
        self._changed = threading.Condition()
        self._serving_line = None
        self._threads = [threading.Thread(target=self._read, args=(stream, keep), daemon=True) for stream, keep in
                         ((self.process.stderr, self._keep_error), (self.process.stdout, self._keep_output))]
        for thread in self._threads:
            thread.start()
        self.address = self._wait_error(r"listening on (\S+?);")
        self.metrics_address = self._wait_error(r"metrics on (\S+)")
        self.channel = grpc.insecure_channel(self.address.replace("0.0.0.0", "127.0.0.1"))
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        if wait:
            self.wait_serving()

    def _read(self, stream, keep):
        for line in stream:
            with self._changed:
                keep(line.rstrip("\n"))
                self._changed.notify_all()

    def _keep_error(self, line):
        self._errors.append(line)

    def _keep_output(self, line):
        self._serving_line = line

    @property
    def log(self):
        with self._changed:
            return "\n".join(self._errors)

    def _wait_for(self, find):
        deadline = time.monotonic() + START_TIMEOUT_S
        with self._changed:
            while True:
                found = find()
                if found:
                    return found
                left = deadline - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self._threads[0].is_alive()):
                    raise AssertionError("the server did not come up:\n" + "\n".join(self._errors))
                self._changed.wait(min(left, 0.2))

    def _wait_error(self, pattern):
        def find():
            matches = (re.search(pattern, line) for line in self._errors)
            return next((match.group(1) for match in matches if match), None)
        return self._wait_for(find)

    def wait_serving(self):
        line = self._wait_for(lambda: self._serving_line)
        assert line == f"serving {MODEL_NAME} on {self.address}", line

    def health(self, service="comoe.v1.InferenceService"):
        return comoe_client.Client(self.channel).health(service)

    def scrape(self):
        with urllib.request.urlopen(self.metrics_address, timeout=10) as answer:
            return answer.read().decode()

    def metrics(self):
        return parse_metrics(self.scrape())

    def loads(self):
        return self.admin.GetLoads(admin_pb2.GetLoadsRequest(), timeout=CALL_TIMEOUT_S)

    def load_gauges(self):
        """What requests hold; all of it is 0 when there are none."""
        metrics = self.metrics()
        gauges = {name: metrics[name] for name in LOAD_GAUGES}
        gauges["open_generations"] = self.loads().open_generations
        return gauges

    def idle(self):
        return not any(self.load_gauges().values())

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait_exit(self, timeout_s=60):
        code = self.process.wait(timeout_s)
        for thread in self._threads:
            thread.join(10)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for thread in self._threads:
            thread.join(10)
        self.process.stdout.close()
        self.process.stderr.close()


# Flags of a server whose plain loops are slow enough on any machine that a long request is still running when
# a test has seen the others wait.
SLOW = ("--kernels", "ref", "--threads", "1")


def eventually(condition, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def request(text="Call me Ishmael.", max_tokens=16, **fields):
    """A GenerateRequest; fields as sampling={"seed": 1}, stopping=..., output=..., or of the request itself."""
    stopping = dict(fields.pop("stopping", {}))
    if max_tokens is not None:
        stopping["max_tokens"] = max_tokens
    if "tokens" not in fields:
        fields["text"] = text
    return inference_pb2.GenerateRequest(stopping=stopping, **fields)


def stream_request(*args, stream=None, **kwargs):
    return inference_pb2.GenerateStreamRequest(request=request(*args, **kwargs), stream=stream or {})


class Begun:
    """A GenerateStream whose first Delta has come. Iterate over all its events, those included; once."""

    def __init__(self, call):
        self._call = call
        self._seen = [next(call)]
        while self._seen[-1].WhichOneof("event") != "delta":
            self._seen.append(next(call))

    def __iter__(self):
        yield from self._seen
        yield from self._call

    def cancel(self):
        self._call.cancel()


class Stream:
    """All of a GenerateStream that was read to its end."""

    def __init__(self, call):
        self.started, self.finished, self.deltas, self.code, self.details = [], [], [], grpc.StatusCode.OK, ""
        self.last_event = None
        try:
            for event in call:
                self.last_event = event.WhichOneof("event")
                if self.last_event == "started":
                    self.started.append(event.started)
                elif self.last_event == "finished":
                    self.finished.append(event.finished)
                else:
                    self.deltas.append(event.delta)
        except grpc.RpcError as error:
            self.code, self.details = error.code(), error.details()

    @property
    def text(self):
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self):
        return [token for delta in self.deltas for token in delta.token_ids]
