"""Every RPC that is built, and every refusal, against one running server."""

import json
import math
import unittest

import grpc

import harness
from harness import CALL_TIMEOUT_S, MODEL_NAME, Stream, inference_pb2, model_pb2, request, stream_request

Code = grpc.StatusCode
LONG = 1900  # tokens: seconds of work, and it fits the context


class RpcTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def generate(self, *args, **kwargs):
        return self.server.inference.Generate(request(*args, **kwargs), timeout=CALL_TIMEOUT_S)

    def stream(self, *args, **kwargs):
        return Stream(self.server.inference.GenerateStream(stream_request(*args, **kwargs), timeout=CALL_TIMEOUT_S))

    def code_of(self, call, *args, **kwargs):
        with self.assertRaises(grpc.RpcError) as caught:
            call(*args, timeout=CALL_TIMEOUT_S, **kwargs)
        return caught.exception.code(), caught.exception.details()

    def assert_serves(self):
        self.assertEqual(len(self.generate(max_tokens=2, stopping={"ignore_eos": True}).choices[0].token_ids), 2)

    def assert_idle(self):
        def idle():
            loads = self.server.admin.GetLoads(harness.admin_pb2.GetLoadsRequest(), timeout=CALL_TIMEOUT_S)
            metrics = self.server.metrics()
            return (loads.running_requests == loads.waiting_requests == loads.open_generations == 0
                    and loads.used_kv_blocks == 0 and metrics["comoe_requests_running"] == 0
                    and metrics["comoe_requests_waiting"] == 0)
        self.assertTrue(harness.eventually(idle), "a request is still there")

    # What is served.

    def test_reflection_lists_the_services(self):
        client = harness.comoe_client.Client(self.server.channel)
        services = client.services()
        for service in ("InferenceService", "ModelService", "AdminService"):
            self.assertIn("comoe.v1." + service, services)
        answer = list(client.call("comoe.v1.InferenceService/Generate",
                                  {"text": "Call me", "stopping": {"max_tokens": 3, "ignore_eos": True}}))
        self.assertEqual(len(answer[0]["choices"][0]["token_ids"]), 3)
        events = list(client.call("comoe.v1.InferenceService/GenerateStream",
                                  {"request": {"text": "Call me", "stopping": {"max_tokens": 3}}}))
        self.assertEqual([list(event) for event in events[:1] + events[-1:]], [["started"], ["finished"]])

    def test_model_service(self):
        config = json.loads((harness.MODEL / "config.json").read_text())
        model = self.server.models.GetModel(model_pb2.GetModelRequest(), timeout=CALL_TIMEOUT_S).model
        self.assertEqual(model.name, MODEL_NAME)
        self.assertEqual(model.architecture, config["model_type"])
        self.assertEqual(model.vocab_size, config["vocab_size"])
        self.assertEqual(model.context_length, config["max_position_embeddings"])
        self.assertEqual(model.num_experts, config["num_experts"])
        self.assertEqual(model.num_experts_per_token, config["num_experts_per_tok"])
        self.assertEqual(model.max_input_tokens, model.max_positions - 1)
        self.assertTrue(model.has_tokenizer)
        self.assertAlmostEqual(model.default_sampling.temperature, 0.8, 5)
        models = self.server.models.ListModels(model_pb2.ListModelsRequest(), timeout=CALL_TIMEOUT_S)
        self.assertEqual([entry.name for entry in models.models], [MODEL_NAME])
        self.assertEqual(models.next_page_token, "")
        code, details = self.code_of(self.server.models.GetModel, model_pb2.GetModelRequest(name="other"))
        self.assertEqual(code, Code.NOT_FOUND)
        self.assertIn(MODEL_NAME, details)

    def test_admin_service(self):
        admin = harness.admin_pb2
        info = self.server.admin.GetServerInfo(admin.GetServerInfoRequest(), timeout=CALL_TIMEOUT_S)
        self.assertEqual(info.state, admin.SERVER_STATE_SERVING)
        self.assertEqual(info.model, MODEL_NAME)
        self.assertTrue(info.version and info.device)
        self.assertEqual(info.limits.max_message_bytes, 8 << 20)
        self.assert_idle()
        self.generate("a prompt that is longer than a block of sixteen tokens, so that it may be found again " * 2)
        self.assertGreater(self.generate("a prompt that is longer than a block of sixteen tokens, so that it may be "
                                         "found again " * 2).usage.cached_prompt_tokens, 0)
        flushed = self.server.admin.FlushCache(admin.FlushCacheRequest(), timeout=CALL_TIMEOUT_S)
        self.assertGreater(flushed.flushed_blocks, 0)
        loads = self.server.admin.GetLoads(admin.GetLoadsRequest(), timeout=CALL_TIMEOUT_S)
        self.assertGreater(loads.total_kv_blocks, 0)

    # Generation.

    def test_unary_stream_and_command_line_agree(self):
        prompts = ("It is a truth universally acknowledged, that", "def main():\n", "\u00bfQu\u00e9 es \u2014 \U0001F600?")
        for sampling, flags in (({"temperature": 0}, ["--greedy"]),
                                ({"seed": 42, "temperature": 0.9}, ["--seed", "42", "--temperature", "0.9"])):
            for prompt in prompts:
                unary = self.generate(prompt, 48, sampling=sampling)
                stream = self.stream(prompt, 48, sampling=sampling)
                choice = unary.choices[0]
                self.assertEqual(stream.code, Code.OK)
                self.assertEqual(stream.text, choice.text)
                self.assertEqual(stream.token_ids, list(choice.token_ids))
                for where in (["--model", str(harness.MODEL), "--quiet"], ["--server", self.server.address]):
                    command = harness.run_comoe("generate", *where, "--prompt", prompt, "--max-tokens", "48", *flags)
                    self.assertEqual(command.returncode, 0, command.stderr)
                    self.assertEqual(command.stdout, choice.text + "\n")

    def test_a_stream_has_one_start_one_end_and_running_usage(self):
        stream = self.stream(max_tokens=20, request_id="mine:1", stream={"include_timing": True})
        self.assertEqual((len(stream.started), len(stream.finished), stream.last_event), (1, 1, "finished"))
        started, finished = stream.started[0], stream.finished[0]
        self.assertEqual((started.request_id, started.model), ("mine:1", MODEL_NAME))
        counts = [delta.usage.completion_tokens for delta in stream.deltas]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(finished.usage.completion_tokens, len(stream.token_ids))
        self.assertEqual(finished.usage.prompt_tokens, started.prompt_tokens)
        self.assertEqual(finished.usage.total_tokens, started.prompt_tokens + len(stream.token_ids))
        self.assertTrue(finished.HasField("timing"))
        quiet = self.stream(max_tokens=5, stream={"include_usage_every_chunk": False},
                            output={"return_token_ids": False})
        self.assertFalse(any(delta.HasField("usage") or delta.token_ids for delta in quiet.deltas))
        self.assertFalse(quiet.finished[0].HasField("timing"))

    def test_a_returned_seed_reproduces(self):
        forever = {"ignore_eos": True}
        first = self.generate(max_tokens=40, stopping=forever)
        again = self.generate(max_tokens=40, stopping=forever, sampling={"seed": first.seed})
        self.assertEqual(first.choices[0].text, again.choices[0].text)
        self.assertEqual(again.seed, first.seed)
        other = self.generate(max_tokens=40, stopping=forever, sampling={"seed": first.seed ^ 1})
        self.assertNotEqual(first.choices[0].token_ids, other.choices[0].token_ids)
        self.assertNotEqual(first.request_id, again.request_id)
        self.assertEqual(self.stream(max_tokens=3, sampling={"seed": 9}).started[0].seed, 9)

    def test_stopping(self):
        whole = self.generate(max_tokens=30, sampling={"temperature": 0})
        self.assertEqual(whole.choices[0].finish_reason, inference_pb2.FINISH_REASON_MAX_TOKENS)
        ids = list(whole.choices[0].token_ids)
        stop = ids[5]
        end = ids.index(stop)
        stopped = self.generate(max_tokens=30, sampling={"temperature": 0}, stopping={"stop_token_ids": [stop]})
        choice = stopped.choices[0]
        self.assertEqual(choice.finish_reason, inference_pb2.FINISH_REASON_STOP_TOKEN)
        self.assertEqual(choice.stop_token_id, stop)
        self.assertEqual(list(choice.token_ids), ids[:end + 1])
        self.assertEqual(stopped.usage.completion_tokens, end + 1)
        kept = self.generate(max_tokens=30, sampling={"temperature": 0},
                             stopping={"stop_token_ids": [stop], "include_stop_in_output": True})
        self.assertTrue(kept.choices[0].text.startswith(choice.text))
        self.assertGreater(len(kept.choices[0].text), len(choice.text))
        full = self.generate(max_tokens=100, tokens={"ids": [5] * 2000}, stopping={"ignore_eos": True})
        self.assertEqual(full.choices[0].finish_reason, inference_pb2.FINISH_REASON_CONTEXT_LENGTH)
        self.assertLessEqual(full.usage.total_tokens, 2049)

    def test_tokens_and_text_prompts_agree(self):
        text = "The quick brown fox"
        ids = self.server.inference.Tokenize(inference_pb2.TokenizeRequest(text=text), timeout=CALL_TIMEOUT_S).token_ids
        a = self.generate(text, sampling={"temperature": 0})
        b = self.generate(tokens={"ids": ids}, sampling={"temperature": 0}, output={"return_token_pieces": True})
        self.assertEqual(a.choices[0].text, b.choices[0].text)
        self.assertEqual(b"".join(b.choices[0].token_pieces).decode(errors="replace"), b.choices[0].text)

    def test_tokenize_and_detokenize(self):
        for text in ("Hello, world!", " two  spaces\n\ttab", "\u4f60\u597d, \U0001F469\u200D\U0001F680 na\u00efve", "a" * 3000):
            tokens = self.server.inference.Tokenize(
                inference_pb2.TokenizeRequest(text=text, return_offsets=True), timeout=CALL_TIMEOUT_S)
            self.assertEqual(len(tokens.offsets), len(tokens.token_ids))
            self.assertEqual(tokens.offsets[-1].end, len(text.encode()))
            back = self.server.inference.Detokenize(
                inference_pb2.DetokenizeRequest(token_ids=tokens.token_ids), timeout=CALL_TIMEOUT_S)
            self.assertEqual(back.text, text)
            self.assertEqual(back.raw, text.encode())
        code, details = self.code_of(self.server.inference.Detokenize, inference_pb2.DetokenizeRequest(token_ids=[8192]))
        self.assertEqual(code, Code.INVALID_ARGUMENT)
        self.assertIn("token_ids[0]", details)
        code, _ = self.code_of(self.server.inference.Tokenize, inference_pb2.TokenizeRequest(text="x" * (5 << 20)))
        self.assertEqual(code, Code.INVALID_ARGUMENT)

    # Refusals.

    def test_bad_values_are_refused_by_path_and_the_next_request_is_served(self):
        bad = [
            ("prompt", inference_pb2.GenerateRequest()),
            ("the prompt is empty", request("")),
            ("tokens.ids[0]", request(tokens={"ids": [8192]})),
            ("the prompt has", request(tokens={"ids": [1] * 2048})),
            ("the prompt has", request("word " * 20000)),
            ("text", request("x" * ((4 << 20) + 1))),
            ("request_id", request(request_id="no spaces")),
            ("request_id", request(request_id="x" * 129)),
            ("stopping.max_tokens", request(max_tokens=0)),
            ("stopping.stop", request(stopping={"stop": ["x"] * 1000})),
            ("stopping.stop[0]", request(stopping={"stop": [""]})),
            ("stopping.stop_token_ids[0]", request(stopping={"stop_token_ids": [1 << 31]})),
            ("sampling.n", request(sampling={"n": 0})),
            ("priority", request(priority=1000)),
        ]
        for field, values in (("temperature", (math.nan, math.inf, -1, 2.5)), ("top_p", (math.nan, 0, -0.5, 1.5)),
                              ("min_p", (math.nan, -0.1, 1.1)), ("top_k", (-2, 8193)),
                              ("repetition_penalty", (math.nan, 0, 3)), ("presence_penalty", (math.nan, 2.5)),
                              ("frequency_penalty", (-math.inf, -2.5))):
            bad += [(f"sampling.{field}", request(sampling={field: value})) for value in values]
        for start, message in bad:
            code, details = self.code_of(self.server.inference.Generate, message)
            self.assertEqual(code, Code.INVALID_ARGUMENT, start)
            self.assertTrue(details.startswith(start), f"{details!r} does not start with {start!r}")
            stream = Stream(self.server.inference.GenerateStream(
                inference_pb2.GenerateStreamRequest(request=message), timeout=CALL_TIMEOUT_S))
            self.assertEqual((stream.code, stream.last_event), (Code.INVALID_ARGUMENT, None))
        self.assert_serves()

    def test_what_is_not_built_is_refused_by_name(self):
        unbuilt = {
            "structured": request(structured={"json_object": True}),
            "lora_adapter": request(lora_adapter="mine"),
            "sampling.n": request(sampling={"n": 9}),
        }
        for name, message in unbuilt.items():
            code, details = self.code_of(self.server.inference.Generate, message)
            self.assertEqual(code, Code.UNIMPLEMENTED, name)
            self.assertTrue(details.startswith(name + ":"), details)
        admin = harness.admin_pb2
        for name in ("StartProfile", "StopProfile"):
            code, details = self.code_of(getattr(self.server.admin, name), getattr(admin, name + "Request")())
            self.assertEqual(code, Code.UNIMPLEMENTED, name)
            self.assertIn(name, details)

    def test_codes_of_the_table(self):
        code, details = self.code_of(self.server.inference.Generate, request(model="other"))
        self.assertEqual(code, Code.NOT_FOUND)
        self.assertIn(MODEL_NAME, details)
        code, _ = self.code_of(self.server.inference.Generate, request("x" * (10 << 20)))
        self.assertEqual(code, Code.RESOURCE_EXHAUSTED)
        # The library refuses what is not UTF-8 before the service sees it.
        raw = self.server.channel.unary_unary("/comoe.v1.InferenceService/Generate")
        code, _ = self.code_of(raw, b"\x1a\x02\xff\xfe")  # field 3, text
        self.assertEqual(code, Code.UNIMPLEMENTED)
        self.assert_serves()

    # Ends that are not the model's.

    def test_a_duplicate_id_is_refused_and_abort_is_idempotent(self):
        call = self.server.inference.GenerateStream(
            stream_request(max_tokens=LONG, request_id="twice", stopping={"ignore_eos": True}), timeout=CALL_TIMEOUT_S)
        next(call)
        code, _ = self.code_of(self.server.inference.Generate, request(request_id="twice"))
        self.assertEqual(code, Code.ALREADY_EXISTS)
        abort = inference_pb2.AbortRequest(request_ids=["twice", "nobody"])
        self.assertEqual(self.server.inference.Abort(abort, timeout=CALL_TIMEOUT_S).aborted, 1)
        stream = Stream(call)
        self.assertEqual(stream.code, Code.CANCELLED)
        self.assertEqual(stream.finished[0].finish_reason, inference_pb2.FINISH_REASON_ABORTED)
        self.assertEqual(self.server.inference.Abort(abort, timeout=CALL_TIMEOUT_S).aborted, 0)
        code, _ = self.code_of(self.server.inference.Abort, inference_pb2.AbortRequest())
        self.assertEqual(code, Code.INVALID_ARGUMENT)
        self.assert_idle()

    def test_a_deadline_ends_it(self):
        message = stream_request(max_tokens=LONG, stopping={"ignore_eos": True})
        stream = Stream(self.server.inference.GenerateStream(message, timeout=0.1))
        self.assertEqual(stream.code, Code.DEADLINE_EXCEEDED)
        with self.assertRaises(grpc.RpcError) as caught:
            self.server.inference.Generate(message.request, timeout=0.1)
        self.assertEqual(caught.exception.code(), Code.DEADLINE_EXCEEDED)
        self.assert_idle()

    def test_a_client_that_leaves_frees_its_request(self):
        before = self.server.metrics()['comoe_stream_aborts_total{reason="client_cancel"}']
        calls = [self.server.inference.GenerateStream(
            stream_request(max_tokens=LONG, stopping={"ignore_eos": True}), timeout=CALL_TIMEOUT_S) for _ in range(3)]
        next(calls[0])  # it runs, the others wait
        for call in calls:
            call.cancel()
        unary = self.server.inference.Generate.future(
            request(max_tokens=LONG, stopping={"ignore_eos": True}), timeout=CALL_TIMEOUT_S)
        unary.cancel()
        self.assert_idle()
        self.assertGreaterEqual(
            self.server.metrics()['comoe_stream_aborts_total{reason="client_cancel"}'], before + 1)
        self.assert_serves()


if __name__ == "__main__":
    unittest.main()
