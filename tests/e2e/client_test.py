"""The Python client against a real server: arguments, streaming, cancel, deadlines, retries."""

import io
import subprocess
import sys
import threading
import time
import unittest

import grpc

import harness
from harness import Server, comoe

Code = grpc.StatusCode
LONG = {"max_tokens": 1900, "ignore_eos": True}


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = comoe.Client(cls.server.address, timeout_s=harness.CALL_TIMEOUT_S)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def test_a_stream_and_an_answer_agree(self):
        options = {"max_tokens": 24, "temperature": 0.7, "seed": 5, "return_logprobs": True, "logprobs": 3,
                   "return_token_pieces": True}
        answer = self.client.generate("Call me", **options)
        with self.client.stream("Call me", **options) as stream:
            text = "".join(chunk.text for chunk in stream)
        self.assertEqual(text, answer.text)
        self.assertEqual(stream.completion.choices, answer.choices)
        self.assertEqual((stream.completion.seed, stream.completion.usage), (5, answer.usage))
        self.assertEqual(answer.finish_reason, "max_tokens")
        self.assertEqual(answer.usage.completion_tokens, len(answer.tokens))
        token = answer.tokens[0]
        self.assertEqual(len(token.top), 3)
        self.assertLessEqual(token.logprob, 0)
        self.assertEqual(list(token.top.values()), sorted(token.top.values(), reverse=True))
        self.assertGreater(answer.timing.time_to_first_token_s, 0)

    def test_options_by_name(self):
        stopped = self.client.generate("Call me", max_tokens=40, temperature=0, stop=[" "], stop_token_ids=[3])
        self.assertEqual(stopped.finish_reason, "stop_string")
        self.assertEqual(stopped.choices[0].stop_string, " ")
        biased = self.client.generate("Call me", max_tokens=4, temperature=0, logit_bias={11: 100.0}, ignore_eos=True)
        self.assertEqual([token.id for token in biased.tokens], [11] * 4)
        limited = self.client.generate("Call me", time_limit=0.05, **LONG)
        self.assertEqual(limited.finish_reason, "time_limit")
        scored = self.client.generate("Call me Ishmael", prompt_logprobs=2, prefill_only=True)
        self.assertIsNone(scored.prompt[0].logprob)
        self.assertLess(scored.prompt[1].logprob, 0)
        self.assertEqual(scored.text, "")
        several = self.client.generate("Call me", n=3, max_tokens=8, temperature=1.0, seed=1, ignore_eos=True)
        self.assertEqual([choice.index for choice in several.choices], [0, 1, 2])
        self.assertEqual(len({choice.text for choice in several.choices}), 3)
        ids = self.client.tokenize("Call me")
        self.assertEqual(self.client.detokenize(ids), "Call me")
        self.assertEqual(self.client.generate(ids, max_tokens=9, temperature=0).text,
                         self.client.generate("Call me", max_tokens=9, temperature=0).text)
        self.assertEqual(self.client.model().name, harness.MODEL_NAME)
        with self.assertRaisesRegex(TypeError, "no option"):
            self.client.generate("x", temprature=1)

    def test_misuse_is_told(self):
        for prompt in (b"bytes", ["a", "b"], [{"role": "user"}]):
            with self.assertRaisesRegex(TypeError, "token ids"):
                self.client.generate(prompt)
        with self.assertRaisesRegex(TypeError, "list of prompts"):
            self.client.generate_all("one")
        with self.assertRaisesRegex(ValueError, "seed=-1"):
            self.client.generate("x", seed=-1)
        stream = self.client.stream("x", max_tokens=None, stop=None, seed=1)
        self.assertEqual(stream.completion.text, "")
        for _ in stream:
            break
        self.assertGreater(stream.completion.usage.completion_tokens, 0)
        with self.assertRaisesRegex(RuntimeError, "once"):
            next(iter(stream))
        stream.cancel()
        quiet = self.client.generate("x", max_tokens=2, ignore_eos=True, return_token_ids=False, logprobs=1)
        self.assertEqual([(token.id, len(token.top)) for token in quiet.tokens], [(None, 1)] * 2)

    def test_n_in_a_stream(self):
        with self.client.stream("Call me", n=3, max_tokens=8, seed=1, ignore_eos=True) as stream:
            seen = {chunk.index for chunk in stream}
        self.assertEqual(seen, {0, 1, 2})
        answer = self.client.generate("Call me", n=3, max_tokens=8, seed=1, ignore_eos=True)
        self.assertEqual([choice.text for choice in answer.choices], [c.text for c in stream.completion.choices])
        self.assertEqual(stream.completion.usage.completion_tokens, 24)

    def test_cancel_from_another_thread(self):
        stream = self.client.stream("Call me", request_id="to-cancel", **LONG)
        threading.Timer(0.2, stream.cancel).start()
        with self.assertRaises(comoe.ComoeError) as caught:
            for _ in stream:
                pass
        self.assertEqual(caught.exception.code, Code.CANCELLED)
        self.assertGreater(len(stream.completion.tokens), 0)
        self.assertTrue(harness.eventually(lambda: self.server.metrics()["comoe_requests_running"] == 0))

    def test_leaving_a_stream_early_ends_it(self):
        with self.client.stream("Call me", **LONG) as stream:
            for _ in stream:
                break
        self.assertTrue(harness.eventually(lambda: self.server.metrics()["comoe_requests_running"] == 0))

    def test_abort(self):
        stream = self.client.stream("Call me", request_id="to-abort", **LONG)
        with self.assertRaises(comoe.ComoeError) as caught:
            for i, _ in enumerate(stream):
                if i == 0:
                    self.assertEqual(self.client.abort("to-abort", "nobody"), 1)
        self.assertEqual(caught.exception.code, Code.CANCELLED)
        self.assertEqual(stream.completion.finish_reason, "aborted")
        self.assertEqual(self.client.abort("to-abort"), 0)

    def test_a_deadline(self):
        with self.assertRaises(comoe.ComoeError) as caught:
            self.client.generate("Call me", timeout_s=0.1, **LONG)
        self.assertEqual(caught.exception.code, Code.DEADLINE_EXCEEDED)

    def test_an_error_names_the_field(self):
        with self.assertRaises(comoe.ComoeError) as caught:
            self.client.generate("Call me", top_p=3)
        self.assertEqual(caught.exception.code, Code.INVALID_ARGUMENT)
        self.assertEqual([field for field, _ in caught.exception.field_violations], ["sampling.top_p"])

    def test_many_prompts(self):
        prompts = [f"Number {i}" for i in range(6)]
        answers = self.client.generate_all(prompts, concurrency=3, max_tokens=6, temperature=0)
        self.assertEqual([answer.text for answer in answers],
                         [self.client.generate(prompt, max_tokens=6, temperature=0).text for prompt in prompts])

    def test_command_line(self):
        run = subprocess.run([sys.executable, "-m", "comoe", "Call me", "--server", self.server.address, "--max-tokens",
                              "12", "--temperature", "0"], capture_output=True, text=True, check=False,
                             env={"PYTHONPATH": ":".join(sys.path)})
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout, self.client.generate("Call me", max_tokens=12, temperature=0).text + "\n")
        self.assertIn("max_tokens: 12 tokens", run.stderr)


class RetryTest(unittest.TestCase):
    def test_a_loading_server_is_waited_for(self):
        with Server(wait=False) as server, comoe.Client(server.address, timeout_s=harness.START_TIMEOUT_S,
                                                       retry=comoe.RetryPolicy(max_attempts=1000)) as client:
            self.assertEqual(len(client.generate("Call me", max_tokens=3, ignore_eos=True).tokens), 3)

    def test_a_full_queue_is_tried_again_and_a_running_answer_is_not(self):
        with Server(*harness.SLOW, "--max-waiting", "1", "--max-sequences", "1") as server, \
                comoe.Client(server.address, timeout_s=harness.CALL_TIMEOUT_S,
                             retry=comoe.RetryPolicy(max_attempts=1000, max_delay_s=0.2)) as patient, \
                comoe.Client(server.address, timeout_s=harness.CALL_TIMEOUT_S, retry=None) as impatient:
            running = impatient.stream("Call me", **LONG)
            chunks = iter(running)
            next(chunks)
            waiting = impatient.stream("Call me", max_tokens=2)
            thread = threading.Thread(target=lambda: list(waiting))
            thread.start()
            self.assertTrue(harness.eventually(lambda: server.metrics()["comoe_requests_waiting"] == 1))
            with self.assertRaises(comoe.ComoeError) as caught:
                impatient.generate("Call me", max_tokens=2)
            self.assertEqual(caught.exception.code, Code.RESOURCE_EXHAUSTED)
            self.assertGreater(caught.exception.retry_after_s, 0)
            threading.Timer(0.3, running.cancel).start()
            self.assertGreater(len(patient.generate("Call me", max_tokens=2, ignore_eos=True).tokens), 0)
            thread.join()
            # What had begun to answer is not begun again.
            with self.assertRaises(comoe.ComoeError):
                list(chunks)

    def test_a_server_that_is_not_there(self):
        begin = time.monotonic()
        with comoe.Client("127.0.0.1:1", retry=comoe.RetryPolicy(max_attempts=2, first_delay_s=0.05)) as client:
            with self.assertRaises(comoe.ComoeError) as caught:
                client.generate("x")
        self.assertEqual(caught.exception.code, Code.UNAVAILABLE)
        self.assertGreater(time.monotonic() - begin, 0.02)

    def test_rules(self):
        policy = comoe.RetryPolicy(max_attempts=3, first_delay_s=1, max_delay_s=1.5)
        busy = comoe.ComoeError(Code.RESOURCE_EXHAUSTED, "", retry_after_s=7)
        self.assertTrue(7 <= policy.delay_s(busy, 1) <= 7.2)
        self.assertIsNone(policy.delay_s(comoe.ComoeError(Code.RESOURCE_EXHAUSTED, "too large"), 1))
        away = comoe.ComoeError(Code.UNAVAILABLE, "")
        self.assertTrue(0.5 <= policy.delay_s(away, 1) <= 1)
        self.assertTrue(0.75 <= policy.delay_s(away, 2) <= 1.5)
        self.assertIsNone(policy.delay_s(away, 3))
        self.assertIsNone(policy.delay_s(comoe.ComoeError(Code.UNAVAILABLE, "", retry_forbidden=True), 1))
        self.assertIsNone(policy.delay_s(comoe.ComoeError(Code.INTERNAL, ""), 1))


class ProgressTest(unittest.TestCase):
    def test_a_bar_on_a_terminal_only(self):
        from comoe.progress import Progress  # pylint: disable=import-outside-toplevel

        class Terminal(io.StringIO):
            def isatty(self):
                return True

        bar = Progress(20)
        bar.add(10)
        self.assertEqual(bar.line(2.0), "[############            ] 10/20 tokens, 5.0/s")
        self.assertEqual(Progress(0).line(1.0), "0 tokens, 0.0/s")
        terminal, file = Terminal(), io.StringIO()
        for target in (terminal, file):
            shown = Progress(2, file=target)
            time.sleep(0.11)
            shown.add(1)
            shown.close()
        self.assertIn("1/2", terminal.getvalue())
        self.assertEqual(file.getvalue(), "")


if __name__ == "__main__":
    unittest.main()
