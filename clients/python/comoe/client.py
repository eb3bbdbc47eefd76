"""Client: Generate and GenerateStream with plain arguments and plain answers."""

import concurrent.futures
import time

import grpc

from comoe import retry as retry_module
from comoe import types
from comoe.errors import ComoeError
from comoe.progress import Progress

try:
    from comoe.v1 import inference_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}: the stubs are made by clients/python/generate_stubs.sh") from missing

# Which message of GenerateRequest a keyword argument belongs to.
_GROUP_OF = {field.name: (group, field)
             for group, message in (("sampling", inference_pb2.SamplingParams),
                                    ("stopping", inference_pb2.StoppingParams),
                                    ("output", inference_pb2.OutputOptions))
             for field in message.DESCRIPTOR.fields}
_REQUEST_FIELDS = {"request_id", "model", "priority", "cache_salt", "lora_adapter"}
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 30_000),  # above the server's floor of 5 s
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.enable_retries", 0),  # RetryPolicy knows better what is safe
]


def make_request(prompt, **options):
    """A GenerateRequest. prompt: str, or a list of token ids. options: fields of SamplingParams, StoppingParams,
    OutputOptions and of the request itself, by their names in inference.proto; time_limit in seconds."""
    request = inference_pb2.GenerateRequest()
    if isinstance(prompt, str):
        request.text = prompt
    elif isinstance(prompt, (bytes, dict)) or not all(isinstance(token, int) for token in prompt):
        raise TypeError("a prompt is a str, or a list of token ids; there are no chat messages")
    else:
        request.tokens.ids.extend(prompt)
    for name, value in options.items():
        if value is None:
            continue  # the server's default
        if name in _REQUEST_FIELDS:
            setattr(request, name, value)
        elif name not in _GROUP_OF:
            known = ", ".join(sorted(_REQUEST_FIELDS | set(_GROUP_OF)))
            raise TypeError(f"{name!r} is no option of a completion; there are: {known}")
        else:
            try:
                _set(getattr(request, _GROUP_OF[name][0]), name, value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}={value!r}: {error}") from error
    return request


def _set(message, name, value):
    if name in ("time_limit", "max_chunk_delay"):
        getattr(message, name).FromNanoseconds(int(value * 1e9))
    elif name == "logit_bias":
        message.logit_bias.update(value)
    elif name in ("stop", "stop_token_ids"):
        getattr(message, name).extend([value] if isinstance(value, (str, int)) else value)
    else:
        setattr(message, name, value)


def _reason_name(value):
    return inference_pb2.FinishReason.Name(value)[len("FINISH_REASON_"):].lower()


class Stream:
    """A completion as it comes: iterate over its Chunks, once. `completion` holds what has come so far, and all of it after the
    last one. cancel() ends it, from any thread. As a context it is cancelled when left early."""

    def __init__(self, open_call, policy, deadline):
        self._open_call = open_call
        self._policy = policy
        self._deadline = deadline
        self._call = None
        self._cancelled = False
        self.completion = types.Completion()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cancel()

    def cancel(self):
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()

    def __iter__(self):
        if self._call is not None:
            raise RuntimeError("a Stream is read once; ask for another")
        for event in self._events():
            chunk = self._take(event)
            if chunk is not None:
                yield chunk

    def _events(self):
        attempt = 0
        while True:
            attempt += 1
            answered = False
            try:
                self._call = self._open_call(_time_left(self._deadline))
                if self._cancelled:
                    self._call.cancel()
                for event in self._call:
                    answered = True
                    yield event
                return
            except grpc.RpcError as rpc_error:
                error = ComoeError.of(rpc_error)
                if answered:  # the server has generated: another attempt would do it twice
                    raise error from rpc_error
                _wait_to_retry(self._policy, error, attempt, self._deadline, rpc_error)

    def _take(self, event):
        kind = event.WhichOneof("event")
        if kind == "started":
            self.completion.request_id = event.started.request_id
            self.completion.model = event.started.model
            self.completion.seed = event.started.seed
            self.completion.prompt = types.prompt_tokens_of(event.started.prompt_logprobs)
            self.completion.usage = types.Usage(event.started.prompt_tokens, 0, event.started.cached_prompt_tokens)
        elif kind == "delta":
            delta = event.delta
            usage = types.Usage.of(delta.usage) if delta.HasField("usage") else None
            chunk = types.Chunk(delta.text, types.tokens_of(delta), delta.index, usage)
            choice = self.completion.choice(delta.index)
            choice.text += chunk.text
            choice.tokens += chunk.tokens
            if usage is not None:
                self.completion.usage = usage
            return chunk
        elif kind == "finished":
            finished = event.finished
            self.completion.choice(finished.index).finish(finished, _reason_name(finished.finish_reason))
            self.completion.usage = types.Usage.of(finished.usage)
            if finished.HasField("timing"):
                self.completion.timing = types.Timing.of(finished.timing)
        return None


def _time_left(deadline):
    return None if deadline is None else max(0.001, deadline - time.monotonic())


def _wait_to_retry(policy, error, attempt, deadline, cause):
    """Sleeps until the next attempt, or raises the error."""
    delay_s = policy.delay_s(error, attempt)
    if delay_s is None or (deadline is not None and time.monotonic() + delay_s >= deadline):
        raise error from cause
    time.sleep(delay_s)


class Client:
    """One server. Thread-safe; a call's errors are ComoeError.

    timeout_s: deadline of a call unless it brings its own; None waits for ever. Retries share the deadline. An option
    that is absent or None takes the server's default, which may be the model's own (model().default_sampling).
    """

    def __init__(self, server="127.0.0.1:50051", timeout_s=None, retry=retry_module.RetryPolicy(), channel=None):
        self._owned = channel is None
        self._channel = grpc.insecure_channel(server, options=_CHANNEL_OPTIONS) if channel is None else channel
        self._timeout_s = timeout_s
        self._policy = retry if retry is not None else retry_module.NEVER
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._models = model_pb2_grpc.ModelServiceStub(self._channel)

    def close(self):
        if self._owned:
            self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _deadline(self, timeout_s):
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return None if timeout_s is None else time.monotonic() + timeout_s

    def _call(self, method, request, timeout_s=None):
        deadline = self._deadline(timeout_s)
        attempt = 0
        while True:
            attempt += 1
            try:
                return method(request, timeout=_time_left(deadline))
            except grpc.RpcError as rpc_error:
                _wait_to_retry(self._policy, ComoeError.of(rpc_error), attempt, deadline, rpc_error)

    def generate(self, prompt, timeout_s=None, **options):
        """A Completion, when it is done. options: see make_request."""
        answer = self._call(self._inference.Generate, make_request(prompt, **options), timeout_s)
        completion = types.Completion(answer.request_id, answer.model, answer.seed, usage=types.Usage.of(answer.usage),
                                      timing=types.Timing.of(answer.timing),
                                      prompt=types.prompt_tokens_of(answer.prompt_logprobs))
        for message in answer.choices:
            choice = types.Choice(message.index, message.text, types.tokens_of(message))
            choice.finish(message, _reason_name(message.finish_reason))
            completion.choices.append(choice)
        return completion

    def stream(self, prompt, timeout_s=None, stream_options=None, **options):
        """A Stream. stream_options: fields of StreamOptions, as a dictionary; max_chunk_delay in seconds."""
        request = inference_pb2.GenerateStreamRequest(request=make_request(prompt, **options))
        for name, value in (stream_options or {}).items():
            _set(request.stream, name, value)
        return Stream(lambda left_s: self._inference.GenerateStream(request, timeout=left_s), self._policy,
                      self._deadline(timeout_s))

    def generate_all(self, prompts, concurrency=8, progress=False, timeout_s=None, **options):
        """Completions of a list of prompts, in their order, `concurrency` at a time. The first error ends it."""
        if isinstance(prompts, (str, bytes)):
            raise TypeError("prompts is a list of prompts")
        bar = Progress(len(prompts), "completions") if progress else None
        pool = concurrent.futures.ThreadPoolExecutor(concurrency)
        try:
            futures = [pool.submit(self.generate, prompt, timeout_s, **options) for prompt in prompts]
            for future in concurrent.futures.as_completed(futures):
                future.result()
                if bar is not None:
                    bar.add(1)
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)
            if bar is not None:
                bar.close()

    def abort(self, *request_ids):
        """Ends requests; how many were in flight."""
        return self._call(self._inference.Abort, inference_pb2.AbortRequest(request_ids=request_ids), 30).aborted

    def tokenize(self, text, add_special_tokens=True):
        request = inference_pb2.TokenizeRequest(text=text, add_special_tokens=add_special_tokens)
        return list(self._call(self._inference.Tokenize, request).token_ids)

    def detokenize(self, token_ids, skip_special_tokens=True):
        request = inference_pb2.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        return self._call(self._inference.Detokenize, request).text

    def model(self):
        """The served model's ModelInfo."""
        return self._call(self._models.GetModel, model_pb2.GetModelRequest()).model
