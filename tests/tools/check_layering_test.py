"""Plants one violation at a time in a small tree and expects tools/check_layering.py to name it."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.environ.get("COMOE_SOURCE_DIR") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
SCRIPT = os.path.join(ROOT, "tools", "check_layering.py")

spec = importlib.util.spec_from_file_location("check_layering", SCRIPT)
check_layering = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_layering)

# A tree that obeys every rule, with one file in each place that a rule is about.
CLEAN = {
    "engine/base/ids.h": "#include <cstdint>\n#include <sys/mman.h>\n#include \"absl/status/status.h\"\n",
    "engine/api/engine.h": '#include "engine/base/ids.h"\n',
    "engine/device/device.h": '#include "engine/base/ids.h"\n',
    "engine/device/cuda/device.cc": "#include <cuda_runtime.h>\n",
    "engine/tensor/view.h": '#include "engine/device/device.h"\n',
    "engine/kernels/gemm.h": '#include "engine/tensor/view.h"\n#include "engine/base/ids.h"\n',
    "engine/kernels/cpu/gemm.cc": '#include "engine/kernels/gemm.h"\n#include "hwy/highway.h"\n',
    "engine/kernels/internal/tile.h": "\n",
    "engine/kernels/ref/gemm.cc": '#include "engine/kernels/internal/tile.h"\n',
    "engine/checkpoint/config.cc": "#include <nlohmann/json.hpp>\n#include <xxhash.h>\n",
    "engine/checkpoint/config.h": "\n",
    "engine/tokenizer/tokenizer.h": "#include <pcre2.h>\n#include <utf8proc.h>\n",
    "engine/sampling/sampler.h": '#include "engine/kernels/gemm.h"\n#include "engine/api/engine.h"\n',
    "engine/experts/cache.h": '#include "engine/checkpoint/config.h"\n#include "engine/api/engine.h"\n',
    "engine/model/forward.h": '#include "engine/experts/cache.h"\n#include "engine/kernels/gemm.h"\n',
    "engine/runtime/engine.cc": '#include "engine/model/forward.h"\n#include "engine/tokenizer/tokenizer.h"\n',
    "scheduler/forecast.h": '#include "engine/api/engine.h"\n',
    "scheduler/batching/queue.h": '#include "scheduler/forecast.h"\n#include "engine/base/ids.h"\n',
    "scheduler/routing/hub.h": '#include "scheduler/forecast.h"\n',
    "server/service.cc": '#include <grpcpp/grpcpp.h>\n#include "comoe/v1/inference.grpc.pb.h"\n'
                         '#include "scheduler/batching/queue.h"\n#include "engine/tokenizer/tokenizer.h"\n',
    "cli/serve.cc": '#include "server/service.h"\n#include "engine/runtime/engine.h"\n#include <CLI/CLI.hpp>\n',
    "cli/flags.h": "\n",
    "server/service.h": "\n",
    "engine/runtime/engine.h": "\n",
    "tests/engine/helper.h": "\n",
    "tests/engine/model_test.cc": '#include <gtest/gtest.h>\n#include "engine/model/forward.h"\n',
    "bench/kernels.cc": '#include <benchmark/benchmark.h>\n#include "engine/kernels/gemm.h"\n',
}

# name -> (file, its whole text, the line that is to blame, words the report must hold)
VIOLATIONS = {
    "an arrow upwards": ("engine/base/up.cc", '\n#include "engine/api/engine.h"\n', 2,
                         ["engine/base -> engine/api", "no other folder"]),
    "an arrow between neighbours": ("engine/kernels/up.cc", '#include "engine/checkpoint/config.h"\n', 1,
                                    ["engine/kernels -> engine/checkpoint", "engine/tensor"]),
    "experts to kernels": ("engine/experts/up.cc", '#include "engine/kernels/gemm.h"\n', 1,
                           ["engine/experts -> engine/kernels"]),
    "model to tokenizer": ("engine/model/up.cc", '#include "engine/tokenizer/tokenizer.h"\n', 1,
                           ["engine/model -> engine/tokenizer"]),
    "scheduler to the engine's inside": ("scheduler/routing/up.cc", '#include "engine/tensor/view.h"\n', 1,
                                         ["scheduler/routing -> engine/tensor", "engine/api"]),
    "batching to routing": ("scheduler/batching/up.cc", '#include "scheduler/routing/hub.h"\n', 1,
                            ["scheduler/batching -> scheduler/routing"]),
    "routing to batching": ("scheduler/routing/up.cc", '#include "scheduler/batching/queue.h"\n', 1,
                            ["scheduler/routing -> scheduler/batching"]),
    "scheduler to its part": ("scheduler/up.cc", '#include "scheduler/routing/hub.h"\n', 1,
                              ["scheduler -> scheduler/routing"]),
    "server to the engine's inside": ("server/up.cc", '#include "engine/runtime/engine.h"\n', 1,
                                      ["server -> engine/runtime"]),
    "something to cli": ("bench/up.cc", '#include "cli/flags.h"\n', 1, ["bench -> cli"]),
    "product to tests": ("engine/base/up.cc", '#include "tests/engine/helper.h"\n', 1, ["engine/base -> tests"]),
    "engine to the wire format": ("engine/api/up.h", '#include "comoe/v1/inference.pb.h"\n', 1,
                                  ["engine/api -> proto"]),
    "an indented and spaced directive": ("engine/base/up.cc", '  #  include  "engine/api/engine.h"\n', 1,
                                         ["engine/base -> engine/api"]),
    "a path from the file": ("engine/kernels/up.cc", '#include "gemm.h"\n', 1, ["root"]),
    "a path with dots": ("engine/kernels/ref/up.cc", '#include "../gemm.h"\n', 1, ["root"]),
    "a path through dots": ("engine/kernels/up.cc", '#include "engine/kernels/../base/ids.h"\n', 1, ["root"]),
    "our header in angle brackets": ("engine/api/up.cc", "#include <engine/base/ids.h>\n", 1,
                                     ['"engine/base/ids.h"']),
    "an unknown folder": ("engine/helpers/up.cc", "\n", 1, ["no folder of the design"]),
    "a computed include": ("engine/base/up.cc", "#define X <vector>\n#include X\n", 2, ["cannot be checked"]),
    "another folder's internals": ("engine/model/up.cc", '#include "engine/kernels/internal/tile.h"\n', 1,
                                   ["only engine/kernels"]),
    "internals in a test": ("tests/up.cc", '#include "engine/kernels/internal/tile.h"\n', 1,
                            ["only engine/kernels"]),
    "CUDA in a header of device": ("engine/device/up.h", "#include <cuda_runtime_api.h>\n", 1,
                                   ["engine/device/cuda"]),
    "CUDA in a test": ("tests/up.cc", "#include <cublas_v2.h>\n", 1, ["engine/kernels/cuda"]),
    "gRPC in the engine": ("engine/runtime/up.cc", "#include <grpcpp/server.h>\n", 1, ["server"]),
    "protobuf in the scheduler": ("scheduler/batching/up.cc", "#include <google/protobuf/message.h>\n", 1,
                                  ["server"]),
    "prometheus in base": ("engine/base/up.cc", '#include "prometheus/counter.h"\n', 1, ["server"]),
    "JSON in the scheduler": ("scheduler/routing/up.cc", "#include <nlohmann/json.hpp>\n", 1,
                              ["engine/tokenizer"]),
    "CLI11 in the server": ("server/up.cc", "#include <CLI/CLI.hpp>\n", 1, ["cli"]),
    "utf8proc outside the tokenizer": ("server/up.cc", "#include <utf8proc.h>\n", 1, ["engine/tokenizer"]),
    "PCRE2 outside the tokenizer": ("engine/base/up.cc", "#include <pcre2.h>\n", 1, ["engine/tokenizer"]),
    "Highway outside the kernels": ("engine/model/up.cc", '#include "hwy/highway.h"\n', 1, ["engine/kernels"]),
    "libzip outside the checkpoints": ("cli/up.cc", "#include <zip.h>\n", 1, ["engine/checkpoint"]),
    "xxhash in the server": ("server/up.cc", "#include <xxhash.h>\n", 1, ["engine/checkpoint"]),
    "GoogleTest in the product": ("engine/base/up.h", "#include <gtest/gtest.h>\n", 1, ["tests"]),
    "a library nobody owns": ("engine/base/up.cc", "#include <boost/any.hpp>\n", 1, ["THIRD_PARTY"]),
    "a long file": ("engine/base/up.cc", "\n" * 801, 801, ["801 lines", "800"]),
    "a long script": ("tools/up.py", "\n" * 900, 900, ["900 lines"]),
}


class Tree:
    """A folder with CLEAN and more files in it, deleted at exit."""

    def __init__(self, **more):
        self.files = {**CLEAN, **more}

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="comoe-layering-")
        for path, text in self.files.items():
            full = os.path.join(self.folder.name, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
        return self.folder.name

    def __exit__(self, *unused):
        self.folder.cleanup()


def check(root):
    return check_layering.Checker(root).run()


class CheckLayeringTest(unittest.TestCase):
    def test_clean_tree_passes(self):
        with Tree() as root:
            self.assertEqual(check(root), [])

    def test_every_violation_is_found_alone_and_where_it_is(self):
        for name, (path, text, line, words) in VIOLATIONS.items():
            with self.subTest(name), Tree(**{path: text}) as root:
                found = [v for v in check(root) if not v[2].startswith("a cycle")]
                self.assertEqual([(f, l) for f, l, _ in found], [(path, line)], found)
                for word in words:
                    self.assertIn(word, found[0][2])

    def test_a_file_may_have_800_lines(self):
        with Tree(**{"engine/base/up.cc": "\n" * 800}) as root:
            self.assertEqual(check(root), [])

    def test_built_and_carried_files_are_not_read(self):
        bad = '#include "../up.h"\n'
        with Tree(**{"build/gen/up.cc": bad, "build-x/up.cc": bad, ".git/up.cc": bad,
                     "tests/fixtures/up.cc": bad}) as root:
            self.assertEqual(check(root), [])

    def test_a_mutual_pair_is_reported_as_a_cycle(self):
        with Tree(**{"engine/base/up.cc": '#include "engine/api/engine.h"\n'}) as root:
            found = check(root)
            self.assertEqual([(f, l) for f, l, _ in found], [("engine/base/up.cc", 1)] * 2, found)
            self.assertIn("engine/base -> engine/api -> engine/base", found[0][2])
            self.assertIn("engine/api/engine.h:1", found[0][2])

    def test_a_long_cycle_is_found(self):
        self.assertEqual(check_layering.cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}}), ["a", "b", "c", "a"])
        self.assertIsNone(check_layering.cycle_in({"a": {"b", "c"}, "b": {"c"}}))

    def test_a_cycle_in_the_table_is_refused(self):
        with self.assertRaisesRegex(ValueError, "a -> b -> a"):
            check_layering.closure({"a": ["b"], "b": ["a"]})

    def test_program_exits_non_zero_and_prints_file_and_line(self):
        with Tree(**{"engine/base/up.cc": '\n\n#include "engine/api/engine.h"\n'}) as root:
            result = subprocess.run([sys.executable, SCRIPT, "--root", root], capture_output=True, text=True,
                                    check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("engine/base/up.cc:3: engine/base -> engine/api", result.stderr)

    def test_an_empty_root_is_no_success(self):
        with tempfile.TemporaryDirectory() as root:
            result = subprocess.run([sys.executable, SCRIPT, "--root", root], capture_output=True, check=False)
        self.assertEqual(result.returncode, 1)

    def test_this_repository_passes_in_well_under_a_second(self):
        start = time.process_time()  # not the wall clock: other work may share the machine
        self.assertEqual(check(ROOT), [])
        self.assertLess(time.process_time() - start, 1.0)


if __name__ == "__main__":
    unittest.main()
