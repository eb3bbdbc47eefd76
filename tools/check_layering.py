#!/usr/bin/env python3
"""Fails the build on an include that the design forbids.

Folders, not files, are what depends on what: a subfolder (engine/kernels/ref) counts as its folder, and what
a folder may include is the transitive closure of ARROWS. Besides the arrows this holds every file to:
includes are written from the repository's root; no folder's internal/ is included from outside; a third-party
header is included only where THIRD_PARTY says; no cycle between folders; at most 800 lines a file.

Usage: check_layering.py [--root DIR] [--arrows]
Prints one line a violation, `file:line: what, and what is allowed`, and exits 1 if there was one.
"""

import argparse
import os
import re
import sys

# Direct arrows. docs/ARCHITECTURE.md draws them; change both, after an ADR.
ENGINE = {
    "engine/base": [],
    "engine/api": ["engine/base"],
    "engine/device": ["engine/base"],
    "engine/tokenizer": ["engine/base"],
    "engine/tensor": ["engine/device"],
    "engine/kernels": ["engine/tensor"],
    "engine/checkpoint": ["engine/tensor"],
    "engine/sampling": ["engine/kernels", "engine/api"],
    "engine/experts": ["engine/device", "engine/tensor", "engine/checkpoint", "engine/api"],
    "engine/model": ["engine/kernels", "engine/experts", "engine/checkpoint", "engine/tensor", "engine/device",
                     "engine/api"],
}
PRODUCT = {
    **ENGINE,
    "engine/runtime": list(ENGINE),
    "scheduler": ["engine/api"],  # only what batching and routing say to each other
    "scheduler/batching": ["scheduler", "engine/api"],
    "scheduler/routing": ["scheduler", "engine/api"],
    "proto": [],  # what protoc generates: comoe/v1/...
    "server": ["scheduler", "scheduler/batching", "scheduler/routing", "engine/api", "engine/tokenizer", "proto"],
}
# Programs for a machine with a GPU, which compare kernels without a test library.
GPU_TESTS = "tests/engine/kernels/cuda"
ARROWS = {
    **PRODUCT,
    "cli": list(PRODUCT),
    "bench": list(PRODUCT),
    "tests": [*PRODUCT, "cli", "bench"],  # a test includes whatever it tests
    GPU_TESTS: [*PRODUCT, "tests"],
}
OUR_TOP_FOLDERS = {folder.split("/")[0] for folder in ARROWS}

# Third-party headers by the start of their path, and who may include them. A new library gets a line here.
EVERYONE = tuple(ARROWS)
OUTSIDE = ("server", "cli", "tests", "bench")
CUDA = ("engine/device/cuda", "engine/kernels/cuda", GPU_TESTS)
THIRD_PARTY = {
    "absl/": EVERYONE,
    "grpc": OUTSIDE, "google/": OUTSIDE, "prometheus/": OUTSIDE,
    "gtest/": ("tests", GPU_TESTS), "gmock/": ("tests",), "benchmark/": ("bench",),
    "nlohmann/": ("engine/checkpoint", "engine/tokenizer", "cli", "tests", "bench"),
    "CLI/": ("cli", "bench"),
    "utf8proc.h": ("engine/tokenizer",), "pcre2.h": ("engine/tokenizer",),
    "hwy/": ("engine/kernels",), "immintrin.h": ("engine/kernels",),
    "xxhash.h": ("engine/base", "engine/checkpoint", "engine/experts"),
    "zip.h": ("engine/checkpoint", "tests"),
    "cuda": CUDA, "cublas": CUDA, "cudnn": CUDA, "curand": CUDA, "cub/": CUDA, "thrust/": CUDA, "nccl": CUDA,
    "nvml": CUDA, "nvrtc": CUDA, "nvtx": CUDA, "cooperative_groups": CUDA, "mma.h": CUDA,
    "device_launch_parameters.h": CUDA,
}
OPERATING_SYSTEM = ("sys/", "linux/", "arpa/", "net/", "netinet/", "asm/")

SOURCES = (".h", ".hh", ".hpp", ".inc", ".inl", ".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh")
COUNTED = SOURCES + (".py", ".sh", ".proto", ".cmake")
MAX_LINES = 800
NOT_OURS = {"build", "dist", "models", "docs"}  # at the root; folders starting with "build-" too
DIRECTIVE = re.compile(rb"^[ \t]*#[ \t]*(?:include|include_next|import)\b[ \t]*(.*)$", re.MULTILINE)
TARGET = re.compile(r'(?:"([^"]+)"|<([^>]+)>)')


def closure(arrows):
    """Folder -> every folder it may reach. Raises ValueError if the table itself has a cycle."""
    reach = {}

    def visit(folder, path):
        if folder in path:
            raise ValueError("the table of arrows has a cycle: " + " -> ".join([*path, folder]))
        if folder not in reach:
            below = set(arrows[folder])
            for target in arrows[folder]:
                below |= visit(target, [*path, folder])
            reach[folder] = below
        return reach[folder]

    for folder in arrows:
        visit(folder, [])
    return reach


def folder_of(path):
    """The folder of ARROWS a root-relative path belongs to, or None."""
    parts = path.split("/")[:-1]
    while parts:
        if "/".join(parts) in ARROWS:
            return "/".join(parts)
        parts.pop()
    return None


def cycle_in(edges):
    """One cycle of a graph {folder: folders} as a list whose ends are equal, or None."""
    done = set()

    def visit(folder, path):
        if folder in path:
            return [*path[path.index(folder):], folder]
        if folder in done:
            return None
        for target in sorted(edges.get(folder, ())):
            found = visit(target, [*path, folder])
            if found:
                return found
        done.add(folder)
        return None

    for folder in sorted(edges):
        found = visit(folder, [])
        if found:
            return found
    return None


class Checker:
    """One run over one tree. `violations` holds (file, line, text); `edges` the arrows seen, each with the
    first include that made it."""

    def __init__(self, root):
        self.root = root
        self.reach = closure(ARROWS)
        self.violations = []
        self.edges = {}
        self.files = 0

    def run(self):
        for path in self.list_files():
            with open(os.path.join(self.root, path), "rb") as file:
                text = file.read()
            self.files += 1
            lines = text.count(b"\n") + (not text.endswith(b"\n") and bool(text))
            if lines > MAX_LINES:
                self.report(path, lines, f"{lines} lines; a file has at most {MAX_LINES}")
            if path.endswith(SOURCES):
                self.check_source(path, text)
        graph = {}
        for source, target in self.edges:
            graph.setdefault(source, set()).add(target)
        cycle = cycle_in(graph)
        if cycle:
            arrows = list(zip(cycle, cycle[1:]))
            blamed = next((arrow for arrow in arrows if arrow[1] not in self.reach[arrow[0]]), arrows[0])
            places = ", ".join("{}:{}".format(*self.edges[arrow]) for arrow in arrows)
            self.report(*self.edges[blamed], f"a cycle between folders: {' -> '.join(cycle)} ({places})")
        self.violations.sort()
        return self.violations

    def list_files(self):
        for where, folders, names in os.walk(self.root):
            relative = os.path.relpath(where, self.root).replace(os.sep, "/")
            at_root = relative == "."
            folders[:] = [f for f in folders if not f.startswith(".") and f != "__pycache__"
                          and not (at_root and (f in NOT_OURS or f.startswith("build-")))
                          and not (relative == "tests" and f == "fixtures")]
            for name in names:
                if name.endswith(COUNTED):
                    yield name if at_root else f"{relative}/{name}"

    def report(self, path, line, text):
        self.violations.append((path, line, text))

    def check_source(self, path, text):
        source = folder_of(path)
        if source is None:
            self.report(path, 1, f"lies in no folder of the design; those are {', '.join(sorted(ARROWS))}")
            return
        for match in DIRECTIVE.finditer(text):
            line = text.count(b"\n", 0, match.start()) + 1
            target = TARGET.match(match.group(1).decode("utf-8", "replace"))
            if not target:
                self.report(path, line, "an include whose path is not written out cannot be checked")
                continue
            self.check_include(path, line, source, target.group(1) or target.group(2), bool(target.group(1)))

    def check_include(self, path, line, source, include, quoted):
        parts = include.split("/")
        if "." in parts or ".." in parts or "" in parts:
            self.report(path, line, f'"{include}": write an include from the repository\'s root')
        elif parts[0] == "comoe":
            self.check_arrow(path, line, source, "proto", include)
        elif len(parts) > 1 and parts[0] in OUR_TOP_FOLDERS:
            self.check_own(path, line, source, include, quoted)
        else:
            self.check_foreign(path, line, source, include, quoted)

    def check_own(self, path, line, source, include, quoted):
        target = folder_of(include)
        if not quoted:
            self.report(path, line, f'<{include}>: our own headers are included as "{include}"')
        if target is None:
            self.report(path, line, f'"{include}" lies in no folder of the design')
        elif "internal" in include.split("/")[:-1] and target != source:
            self.report(path, line, f'{source} -> "{include}": only {target} may include its internal/')
        else:
            self.check_arrow(path, line, source, target, include)

    def check_arrow(self, path, line, source, target, include):
        if source == target:
            return
        self.edges.setdefault((source, target), (path, line))
        allowed = self.reach[source]
        if target not in allowed:
            self.report(path, line, f'{source} -> {target} ("{include}") is not allowed; {source} may include '
                                    f'{", ".join(sorted(allowed)) or "no other folder"}')

    def check_foreign(self, path, line, source, include, quoted):
        owner = max((prefix for prefix in THIRD_PARTY if include.startswith(prefix)), key=len, default=None)
        if owner is not None:
            owners = THIRD_PARTY[owner]
            if not any(path.startswith(folder + "/") for folder in owners):
                self.report(path, line, f"{source} -> <{include}> is not allowed; it is for {', '.join(owners)}")
        elif quoted:
            self.report(path, line, f'"{include}": write an include from the repository\'s root')
        elif "/" in include and not include.startswith(OPERATING_SYSTEM):
            self.report(path, line, f"<{include}>: no library of ours; THIRD_PARTY in tools/check_layering.py "
                                    "says which folders may include which library")


def main(argv):
    parser = argparse.ArgumentParser(description="Checks the arrows between the folders.")
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--arrows", action="store_true", help="also print every arrow that the tree uses")
    options = parser.parse_args(argv)
    checker = Checker(options.root)
    violations = checker.run()
    if options.arrows:
        for source, target in sorted(checker.edges):
            print(f"{source} -> {target}")
    for path, line, text in violations:
        print(f"{path}:{line}: {text}", file=sys.stderr)
    if violations:
        print(f"layering: {len(violations)} violations in {checker.files} files", file=sys.stderr)
        return 1
    if checker.files == 0:
        print(f"layering: no source file below {options.root}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
