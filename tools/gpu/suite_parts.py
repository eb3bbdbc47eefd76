"""Parts of the GPU suite that check: is it right? Their timings mean nothing, as they run side by side."""

import json
import os
import re
import shutil

# Without naive, which would copy the demo model's small experts one by one for 96 sequences: fixtures have it.
POLICIES = ("resident", "static", "lru", "simple", "hub")
BF16_NLL_BOUND = 2e-3


def device(suite, part):
    """Streams, events, copies and failures on the device; what its parts cost."""
    run = suite.run("device", [suite.program("cuda_device_check"), suite.plugin], 30)
    part.ran(run)
    for name, outcome in re.findall(r"^(\S.{10,38}?) {2,}(ok|[A-Z_]+:.*)$", run.output, re.M):
        part.check(name.strip(), outcome == "ok", None if outcome == "ok" else outcome)
    part.numbers["microseconds"] = {name.strip(): float(us)
                                    for name, us in re.findall(r"^(\S.*?) {2,}([\d.]+) us$", run.output, re.M)}
    part.numbers["gb_per_second"] = {
        int(size): {"to_device": float(a), "to_host": float(b), "pageable": float(c)}
        for size, a, b, c in re.findall(r"^ *(\d+) +([\d.]+) +([\d.]+) +([\d.]+)$", run.output, re.M)}
    part.numbers["description"] = run.output.splitlines()[0] if run.output else ""


def kernels(suite, part):
    """Every launch against the reference loops, over a sweep of shapes."""
    run = suite.run("kernels", [suite.program("cuda_kernels_check")], 90)
    part.ran(run)
    counts = re.search(r"(\d+) checks, (\d+) failed\s*$", run.output)
    if counts:
        part.numbers = {"checks": int(counts.group(1)), "failed": int(counts.group(2))}
    part.numbers["worst_of_tolerance"] = {name.strip(): float(worst) for name, worst in re.findall(
        r"^(.*?) +\d+ checks, \d+ failed, worst ([\d.e+-]+)", run.output, re.M)}


def verify_jobs(suite):
    """(name, command, limit) of `comoe verify` runs that must pass."""
    jobs = []
    for model in sorted(os.listdir(suite.fixtures)):
        for policy in ("resident", "naive", "lru", "hub"):
            share = [] if policy == "resident" else ["--expert-cache-fraction", "0.3"]
            jobs.append((f"{model}-{policy}", [suite.comoe, "verify", os.path.join(suite.fixtures, model), "--device",
                                               "cuda", "--policy", policy, "--threads", suite.threads, "--json",
                                               "--quiet", *share], 30))
    for policy in POLICIES:
        for lane in ("off", "on"):
            options = [] if policy == "resident" else ["--expert-cache-fraction", "0.25", "--host-lane", lane]
            if policy == "resident" and lane == "on":
                continue
            jobs.append((f"demo-{policy}{'-lane' if lane == 'on' else ''}",
                         [suite.comoe, "verify", suite.demo, "--device", "cuda", "--policy", policy, "--threads",
                          suite.threads, "--json", "--quiet", *options], 60))
    return jobs


def details(run):
    """The checks in verify's JSON, by name."""
    begin = run.output.find("{")
    try:
        found, _ = json.JSONDecoder().raw_decode(run.output[begin:] if begin >= 0 else "")
        return {check["name"]: check["detail"] for check in found["checks"]}
    except ValueError:
        return {}


def nll_difference(found):
    value = re.search(r"difference ([+-][\d.e+-]+)", found.get("golden_nll.json", ""))
    return float(value.group(1)) if value else None


def bf16(part, run, name):
    """Rounded activations are judged by the NLL; greedy tokens and routing may differ where two are close."""
    found = details(run)
    difference = nll_difference(found)
    part.check(name, difference is not None and abs(difference) <= BF16_NLL_BOUND,
               difference if difference is not None else run.last_lines(), f"within {BF16_NLL_BOUND}")
    part.numbers[name] = found


def verify(suite, part):
    """The fixtures of four architectures and the demo model, against their references."""
    jobs = verify_jobs(suite)
    jobs.append(("demo-bf16", [suite.comoe, "verify", suite.demo, "--device", "cuda", "--policy", "resident",
                               "--activations", "bf16", "--json", "--quiet"], 60))
    largest = 0.0
    for run in suite.run_all([("verify-" + name, *rest) for name, *rest in jobs]):
        if run.name == "verify-demo-bf16":
            bf16(part, run, "demo-bf16")
            continue
        part.ran(run)
        found = details(run)
        error = re.search(r"at most ([\d.e+-]+)", found.get("golden.json logits", ""))
        largest = max(largest, float(error.group(1)) if error else 0.0)
        if run.name.startswith("verify-demo"):
            part.numbers[run.name] = {"nll_difference": nll_difference(found)}
    part.numbers["largest_error_of_logits"] = largest


def models(suite, part):
    """Further models (MODELS), float32 and rounded activations."""
    folders = os.environ.get("MODELS", "").split()
    if not folders:
        part.state = "skipped: MODELS names none"
        return
    jobs = []
    for folder in folders:
        for activations, policy in (("f32", "resident"), ("f32", "hub"), ("bf16", "resident"), ("bf16", "hub")):
            share = [] if policy == "resident" else ["--expert-cache-fraction", "0.25"]
            jobs.append((f"{os.path.basename(folder.rstrip('/'))}-{activations}-{policy}",
                         [suite.comoe, "verify", folder, "--device", "cuda", "--policy", policy, "--activations",
                          activations, "--json", "--quiet", *share], 120))
    for run in suite.run_all(jobs):
        if "-bf16-" in run.name:
            bf16(part, run, run.name)
        else:
            part.ran(run)
            part.numbers[run.name] = details(run)


def tokens(suite, part):
    """Same steps, same tokens for all policies and capacities; how far tokens depend on the batch."""
    program = suite.program("cuda_tokens_check")
    jobs = []
    few = ("--capacities", "0.25", "--policies", "naive,lru,hub")
    for model, *options in ((suite.demo,), (suite.fixtures + "/qwen2_moe", *few),
                            *((f"{suite.fixtures}/{name}", "--parts", "policies", *few)
                              for name in ("mixtral", "olmoe", "qwen3_moe"))):
        # A process for each precision, side by side.
        for activations in ("f32", "bf16"):
            name = f"tokens-{os.path.basename(model)}-{activations}"
            jobs.append((name, [program, model, "--plugin", suite.plugin, "--activations", activations, "--threads",
                                suite.threads, "--json", os.path.join(suite.logs, name + ".json"), *options], 150))
    for run in suite.run_all(jobs):
        part.ran(run)
        try:
            with open(os.path.join(suite.logs, run.name + ".json"), encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            continue
        policies = found.get("policies", {})
        part.numbers[run.name] = {"policies": {key: policies.get(key) for key in ("settings", "lane_off", "lane_on")},
                                  "batch_dependence": found.get("batch_dependence")}
        by_policy = {}
        for point in policies.get("points", []):
            if point["host_lane"] == "on":
                sums = by_policy.setdefault(point["policy"], {"tokens": 0, "other_tokens": 0, "largest_difference": 0})
                sums["tokens"] += point["tokens"]
                sums["other_tokens"] += point["other_tokens"]
                sums["largest_difference"] = max(sums["largest_difference"], point["largest_difference"])
        part.numbers[run.name]["lane_on_by_policy"] = by_policy


def sanitizer(suite, part):
    """compute-sanitizer over quick checks. A machine may refuse it, which is told and is no failure."""
    path = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(path, os.X_OK):
        part.state = "refused: there is no compute-sanitizer"
        return
    quick = [suite.program("cuda_kernels_check"), "--quick"]
    engine = [suite.comoe, "verify", suite.fixtures + "/qwen2_moe", "--device", "cuda", "--policy", "hub",
              "--expert-cache-fraction", "0.3", "--threads", suite.threads, "--quiet"]
    jobs = [(f"{tool}-{name}", [path, "--tool", tool, "--error-exitcode", "9", *command], 100)
            for tool in ("memcheck", "racecheck") for name, command in (("kernels", quick), ("engine", engine))]
    refused = []
    for run in suite.run_all(jobs):
        summary = re.search(r"(ERROR|RACECHECK) SUMMARY: (.*)", run.output)
        part.numbers[run.name] = {"seconds": round(run.seconds, 1),
                                  "summary": summary.group(2) if summary else run.last_lines()}
        if run.code is None:
            part.numbers[run.name]["summary"] = "did not end in time"
            refused.append(run.name)
        elif summary is None and not run.ok:
            refused.append(run.name)
        else:
            part.ran(run)
    if refused:
        part.numbers["refused_or_not_ended"] = refused
        if not part.checks:
            part.state = "refused: " + part.numbers[refused[0]]["summary"]


PARTS = {"device": device, "kernels": kernels, "verify": verify, "tokens": tokens, "sanitizer": sanitizer,
         "models": models}
