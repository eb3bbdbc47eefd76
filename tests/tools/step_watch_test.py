"""What tools/gpu/step_watch.py makes of counts of driver calls."""

import contextlib
import importlib.util
import io
import json
import os
import tempfile
import unittest

ROOT = os.environ.get("COMOE_SOURCE_DIR") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
spec = importlib.util.spec_from_file_location("step_watch", os.path.join(ROOT, "tools", "gpu", "step_watch.py"))
step_watch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(step_watch)

START = {"cuMemAlloc_v2": 7, "cuMemHostAlloc": 3, "cuCtxSynchronize": 1, "cuMemcpyHtoD_v2": 2, "cuMemcpyAsync": 30,
         "cuLaunchKernel": 200, "cuStreamSynchronize": 20}
MORE = dict(START, cuMemcpyAsync=70, cuLaunchKernel=600, cuStreamSynchronize=60)


def counts(calls, default_stream=None):
    return {"calls": calls, "default_stream": default_stream or {}}


class Judge(unittest.TestCase):
    def test_only_what_more_steps_add_counts(self):
        result = step_watch.judge(counts(START), counts(MORE), 40)
        self.assertTrue(result["ok"], result)
        self.assertEqual(result["per_step"]["launches"], 10)
        self.assertEqual(result["per_step"]["copies"], 1)
        self.assertEqual(result["at_start"], {"allocations": 10, "device_wide_waits": 1, "default_stream": 2})

    def test_what_a_step_must_not_do_is_named(self):
        for name, calls, default_stream in (
                ("cuMemAlloc_v2", dict(MORE, cuMemAlloc_v2=8), {}),
                ("cuMemFree_v2", dict(MORE, cuMemFree_v2=1), {}),
                ("cuMemAllocFromPoolAsync", dict(MORE, cuMemAllocFromPoolAsync=1), {}),
                ("cuMemHostRegister_v2", dict(MORE, cuMemHostRegister_v2=1), {}),
                ("cuCtxSynchronize", dict(MORE, cuCtxSynchronize=41), {}),
                ("cuMemsetD8_v2", dict(MORE, cuMemsetD8_v2=40), {}),
                ("cuMemcpyHtoD_v2", dict(MORE, cuMemcpyHtoD_v2=3), {}),
                ("cuLaunchKernel on a default stream", MORE, {"cuLaunchKernel": 1})):
            result = step_watch.judge(counts(START), counts(calls, default_stream), 40)
            self.assertFalse(result["ok"], name)
            self.assertEqual(list(result["wrong"]), [name])

    def test_files_of_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            def write(name, content):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    json.dump(content, file)

            def run():
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    return step_watch.main(folder), said.getvalue()

            self.assertEqual(run()[0], 1, "nothing was counted")
            write("step_watch-hub-lane-20.json", counts(START))
            write("step_watch-hub-lane-60.json", counts(MORE))
            self.assertEqual(run()[0], 0)
            write("step_watch-lru-20.json", counts(START))
            code, said = run()
            self.assertEqual(code, 1, "a run is missing")
            self.assertIn("only the run of [20] steps", said)
            with open(os.path.join(folder, "step_watch.json"), encoding="utf-8") as file:
                self.assertFalse(json.load(file)["ok"])


if __name__ == "__main__":
    unittest.main()
