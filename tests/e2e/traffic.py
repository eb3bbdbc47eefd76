"""All that clients do to a server, good and bad, one call at a time: what several tests mix their load from."""

import threading

import grpc

import harness
from harness import CALL_TIMEOUT_S, Begun, Stream, inference_pb2, request, stream_request

Code = grpc.StatusCode
LONG = 1900  # tokens: a second of work and more, and it fits the context
FOREVER = {"ignore_eos": True}
WORDS = ("the", "whale", "of", "a", "letter", "def", "return", "sea", "42", "\u00e9t\u00e9", "\u4f60\u597d", "\n")


class CountingChannel(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Counts the RPCs that go through `channel`. Thread-safe."""

    def __init__(self, channel):
        self._lock = threading.Lock()
        self._sent = 0
        self.channel = grpc.intercept_channel(channel, self)

    @property
    def sent(self):
        with self._lock:
            return self._sent

    def _pass_on(self, continuation, details, message):
        with self._lock:
            self._sent += 1
        return continuation(details, message)

    intercept_unary_unary = _pass_on
    intercept_unary_stream = _pass_on


class Traffic:
    """Calls of one client. Each method makes one call or two, fails (AssertionError) if one ends otherwise than it
    has to, and returns how many generations gave a token. Use from one thread."""

    def __init__(self, channel, rng, name):
        self._inference = harness.inference_pb2_grpc.InferenceServiceStub(channel)
        self._models = harness.model_pb2_grpc.ModelServiceStub(channel)
        self._admin = harness.admin_pb2_grpc.AdminServiceStub(channel)
        self._rng = rng
        self._name = name
        self._count = 0

    # What there is to mix.

    def good(self):
        return [self.unary, self.stream, self.several, self.stop_string, self.prefill_only]

    def bad(self):
        return [self.invalid, self.unknown_model, self.not_built, self.too_long]

    def ended_early(self):
        return [self.aborted, self.cancelled, self.duplicate]

    def others(self):
        return [self.tokenize, self.detokenize, self.get_model, self.list_models, self.server_info, self.loads,
                self.flush_cache, self.log_level]

    # Parts.

    def _prompt(self, most=60):
        return " ".join(self._rng.choice(WORDS) for _ in range(self._rng.randrange(1, most)))

    def _sampling(self):
        return self._rng.choice([
            {"temperature": 0}, {"seed": self._rng.randrange(2**64)}, {"temperature": 1.5, "top_p": 0.9},
            {"top_k": 20, "min_p": 0.05}, {"logit_bias": {7: -100.0, 11: 5.0}},
            {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5}])

    def _id(self):
        self._count += 1
        return f"{self._name}:{self._count}"

    def _generate(self, message, timeout=CALL_TIMEOUT_S):
        return self._inference.Generate(message, timeout=timeout)

    def _open(self, *args, timeout=CALL_TIMEOUT_S, **kwargs):
        return self._inference.GenerateStream(stream_request(*args, **kwargs), timeout=timeout)

    def _expect(self, code, message):
        """By either method: it is refused with that code, and there is no event."""
        if self._rng.random() < 0.5:
            stream = Stream(self._inference.GenerateStream(inference_pb2.GenerateStreamRequest(request=message),
                                                           timeout=CALL_TIMEOUT_S))
            found, details = stream.code, stream.details
            assert stream.last_event is None, stream.last_event
        else:
            try:
                self._generate(message)
                found, details = Code.OK, ""
            except grpc.RpcError as error:
                found, details = error.code(), error.details()
        assert found == code, f"{found} instead of {code}: {details}"
        return 0

    # Generations.

    def unary(self):
        answer = self._generate(request(self._prompt(), self._rng.randrange(1, 60), sampling=self._sampling()))
        assert answer.usage.completion_tokens == len(answer.choices[0].token_ids) > 0, answer
        return 1

    def stream(self, max_tokens=120, words=60):
        stream = Stream(self._open(self._prompt(words), self._rng.randrange(1, max_tokens), sampling=self._sampling()))
        assert (stream.code, len(stream.started), len(stream.finished)) == (Code.OK, 1, 1), stream.details
        assert stream.finished[0].usage.completion_tokens == len(stream.token_ids), stream.finished
        return 1

    def long_stream(self):
        return self.stream(LONG)

    def long_prompt(self):
        return self.stream(words=600)

    def several(self):
        answer = self._generate(request(self._prompt(), self._rng.randrange(1, 40), sampling={"n": 2}))
        assert [choice.index for choice in answer.choices] == [0, 1], answer
        return 1

    def stop_string(self):
        answer = self._generate(request(self._prompt(), 80, stopping={"stop": [" ", "e", "\n"], **FOREVER}))
        choice = answer.choices[0]
        assert choice.finish_reason in (inference_pb2.FINISH_REASON_STOP_STRING,
                                        inference_pb2.FINISH_REASON_MAX_TOKENS), choice
        assert not any(text in choice.text for text in (" ", "e", "\n")), choice
        return 1

    def prefill_only(self):
        answer = self._generate(request(self._prompt(), None, output={"prefill_only": True, "prompt_logprobs": 1}))
        assert len(answer.prompt_logprobs) == answer.usage.prompt_tokens > 0, answer
        return 0

    # Generations that are refused.

    def invalid(self):
        return self._expect(Code.INVALID_ARGUMENT, self._rng.choice([
            request(sampling={"top_p": 5}), request(""), request(max_tokens=0), request(request_id="no spaces"),
            request(tokens={"ids": [1 << 31]}), request(stopping={"stop": ["x"] * 17})]))

    def unknown_model(self):
        return self._expect(Code.NOT_FOUND, request(model="other"))

    def not_built(self):
        return self._expect(Code.UNIMPLEMENTED, self._rng.choice([
            request(structured={"json_object": True}), request(lora_adapter="mine"), request(sampling={"n": 9})]))

    def too_long(self):
        return self._expect(Code.INVALID_ARGUMENT, request("word " * 5000))

    # Generations that end early.

    def _begin(self, **fields):
        return Begun(self._open(self._prompt(), LONG, stopping=FOREVER, **fields))

    def aborted(self):
        request_id = self._id()
        call = self._begin(request_id=request_id)
        answer = self._inference.Abort(inference_pb2.AbortRequest(request_ids=[request_id]), timeout=CALL_TIMEOUT_S)
        stream = Stream(call)
        # Or it was over.
        assert (answer.aborted, stream.code) in ((1, Code.CANCELLED), (0, Code.OK)), (answer, stream.code)
        return 1

    def cancelled(self):
        call = self._begin()
        call.cancel()
        stream = Stream(call)
        assert stream.code in (Code.CANCELLED, Code.OK), stream.code
        return 1

    def duplicate(self):
        request_id = self._id()
        call = self._begin(request_id=request_id)
        self._expect(Code.ALREADY_EXISTS, request(request_id=request_id))
        call.cancel()
        return 1

    def late(self, choices=8, timeout=0.4):
        """Past its deadline before it is done. On an idle server it gives tokens first."""
        stream = Stream(self._open(self._prompt(), LONG, sampling={"n": choices}, stopping=FOREVER, timeout=timeout))
        assert stream.code == Code.DEADLINE_EXCEEDED, stream.code
        return 1 if stream.deltas else 0

    # The other methods.

    def tokenize(self):
        message = inference_pb2.TokenizeRequest(text=self._prompt())
        assert self._inference.Tokenize(message, timeout=CALL_TIMEOUT_S).token_ids
        return 0

    def detokenize(self):
        self._inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=range(100, 140)), timeout=CALL_TIMEOUT_S)
        return 0

    def get_model(self):
        self._models.GetModel(harness.model_pb2.GetModelRequest(), timeout=CALL_TIMEOUT_S)
        return 0

    def list_models(self):
        self._models.ListModels(harness.model_pb2.ListModelsRequest(), timeout=CALL_TIMEOUT_S)
        return 0

    def server_info(self):
        self._admin.GetServerInfo(harness.admin_pb2.GetServerInfoRequest(), timeout=CALL_TIMEOUT_S)
        return 0

    def loads(self):
        self._admin.GetLoads(harness.admin_pb2.GetLoadsRequest(), timeout=CALL_TIMEOUT_S)
        return 0

    def flush_cache(self):
        self._admin.FlushCache(harness.admin_pb2.FlushCacheRequest(force=True), timeout=CALL_TIMEOUT_S)
        return 0

    def log_level(self):
        level = harness.admin_pb2.LOG_LEVEL_WARNING
        self._admin.SetLogLevel(harness.admin_pb2.SetLogLevelRequest(level=level), timeout=CALL_TIMEOUT_S)
        return 0
