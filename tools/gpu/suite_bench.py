"""Parts of the GPU suite that measure, one after the other, beside the targets that were set."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request

# Least shares of the copy rate measured in the same run, at sizes that fill the chip.
COPY_SHARES = ((r"decode (64 x 4096|256 x 1024), 32/4 heads ", 0.80), (r"rms_norm(\+add)? 32768x", 0.80),
               (r"combine 8192x", 0.80), (r"ffn 64 experts x 1 rows? ", 0.75), (r"ffn 64 experts x 4 rows ", 0.60))
GATE_SHARE = 0.60  # of the higher of two floors: bytes, and instructions issued (by bytes alone it is more)
FFN_OF_CUBLAS = 0.50
SOURCE_SPEED, SOURCE_BYTES = 1.79, 0.43  # of `naive`: what is to be reached
OF_FLOOR = 1.2
ALL_RESIDENT = 0.90  # of the speed of `resident`
PORT, METRICS_PORT = 50951, 9951


def bench(suite, part):
    """Each kernel beside the copy rate and cuBLAS of the same run."""
    lines = os.path.join(suite.logs, "bench.jsonl")
    run = suite.run("bench", [suite.program("cuda_kernels_bench"), lines], 120)
    part.ran(run)
    points = {}
    if os.path.exists(lines):
        with open(lines, encoding="utf-8") as file:
            points = {point["name"]: point for point in map(json.loads, file)}
    rates = dict(re.findall(r"^(copy|cuBLAS 8192\^3 bf16): +(\d+)", run.output, re.M))
    part.numbers = {"copy_gb_per_second": rates.get("copy"), "cublas_tflops": rates.get("cuBLAS 8192^3 bf16"),
                    "kernels": {name: {key: value for key, value in point.items() if key != "name" and value}
                                for name, point in points.items()}}
    for pattern, least in COPY_SHARES:
        for name, point in points.items():
            if re.match(pattern, name) and "tiles" not in name:
                part.check(name, point["copy_share"] >= least, point["copy_share"], f"{least} of the copy rate")
    # Where the bench knows the instructions of the gate, it says in the next line how near its floor that comes.
    floors = dict(re.findall(r"^(gate \d{5,}x\d+ top \d+) .*\n +floors: .*?([\d.]+) % of the higher", run.output, re.M))
    for name, point in points.items():
        if re.match(r"gate \d{5,}x", name):
            share = max(point["copy_share"], float(floors.get(name, 0)) / 100)
            part.check(name, share >= GATE_SHARE, share, f"{GATE_SHARE} of the higher floor")
    ours = points.get("ffn 64 experts x 256 rows, tiles bf16")
    theirs = points.get("ffn 64 experts x 256 rows, cuBLAS batched")
    if ours and theirs:
        share = theirs["us"] / ours["us"]
        part.check(ours["name"], share >= FFN_OF_CUBLAS, share, f"{FFN_OF_CUBLAS} of cuBLAS")
    if not points:
        part.check("lines of bench", False, "none")


def offload(suite, part, name, limit, *options):
    """Points of one `comoe bench offload`."""
    run = suite.run(name, [suite.comoe, "bench", "offload", "--model", suite.demo, "--device", "cuda", "--kv-bytes",
                           "256MiB", "--json", "--quiet", *options], limit)
    part.ran(run)
    begin = run.output.find("{")
    try:
        points = json.JSONDecoder().raw_decode(run.output[begin:])[0]["points"] if run.ok and begin >= 0 else []
    except ValueError:
        points = []
        part.check(name + ": JSON", False, run.last_lines())
    return points


def of_floor(point):
    """The step beside the longest of link, device and host lane for what it moved and computed."""
    floor = max(point["copies"]["h2d"]["busy_seconds"], point["device_busy_share"] * point["seconds"],
                point["host_lane_seconds"])
    return point["seconds"] / floor if floor > 0 else 0.0


def short(point):
    """A point without what is zero."""
    seconds = point["seconds"] or 1.0
    h2d = point["copies"]["h2d"]
    return {"tokens_per_second": round(point["tokens_per_second"], 2), "bytes_to_device": point["bytes_to_device"],
            "served": point["served"], "inter_token_ms": {k: round(1e3 * v, 3)
                                                          for k, v in point["inter_token_seconds"].items()},
            "first_token_ms": {k: round(1e3 * v, 1) for k, v in point["first_token_seconds"].items()},
            "device_busy": round(point["device_busy_share"], 4), "link_busy": round(h2d["busy_seconds"] / seconds, 4),
            "copies_overlapped": round(h2d["overlapped_seconds"] / (h2d["busy_seconds"] or 1.0), 4),
            "host_lane_busy": round(point["host_lane_seconds"] / seconds, 4),
            "stall": {k: round(v / seconds, 4) for k, v in point["stall_seconds"].items() if v},
            "other": round(point["other_seconds"] / seconds, 4), "of_floor": round(of_floor(point), 3),
            "decisions_us_a_step": round(1e6 * (point["decisions"]["observe_seconds"] +
                                                point["decisions"]["plan_seconds"]) * point["batch"] /
                                         max(1, point["tokens"]), 1),
            "unpinned_copies": point["unpinned_copies"], "same_logits": point["same_tokens"],
            "prefetch_wasted_bytes": point["prefetch_bytes"]["wasted"]}


def experts(suite, part):
    """20 GB of experts, a quarter of them on the device: policies on identical steps."""
    batches = [int(batch) for batch in os.environ.get("BATCHES", "1 4 16").split()]
    common = ["--widen", "2048,6400", "--capacities", "0.25", "--activations", "bf16"]
    # A process for a batch, as loading takes longer than a point.
    steps = {1: ("40", "20"), 4: ("24", "16"), 16: ("12", "8")}
    points = []
    for batch in batches:
        timed, warmup = steps.get(batch, steps[16])
        points += offload(suite, part, f"experts-{batch}", 150, *common, "--batch", str(batch), "--policies",
                          "naive,static,lru,simple,hub", "--host-lanes", "off,on", "--steps", timed, "--warmup", warmup)
    # Pageable copies are slow, and naive's steps all alike: a few tell.
    points += offload(suite, part, "experts-pageable", 150, *common, "--batch", ",".join(map(str, batches)),
                      "--policies", "naive-pageable", "--host-lanes", "off,on", "--steps", "4", "--warmup", "1")
    naive = {}
    for point in points:
        numbers = short(point)
        policy, batch, lane = point["policy"], point["batch"], point["host_lane"]
        bytes_a_token = point["bytes_to_device"] / max(1, point["tokens"])
        if policy == "naive" and lane == "off":
            naive[batch] = (point["tokens_per_second"], bytes_a_token)
        if batch in naive:
            numbers["of_naive"] = {"speed": round(point["tokens_per_second"] / naive[batch][0], 3),
                                   "bytes": round(bytes_a_token / naive[batch][1], 3)}
        part.numbers.setdefault(f"batch {batch}, lane {lane}", {})[policy] = numbers
        if policy in ("simple", "hub"):
            part.check(f"{policy}, batch {batch}, lane {lane}: of the floor", numbers["of_floor"] <= OF_FLOOR,
                       numbers["of_floor"], f"at most {OF_FLOOR}")
        if lane == "off" and "pageable" not in policy:
            part.check(f"{policy}, batch {batch}: same logits", point["same_tokens"])
    for batch, lane in ((1, "off"), (4, "on")):
        found = part.numbers.get(f"batch {batch}, lane {lane}", {})
        reached = {name: point["of_naive"] for name, point in found.items()
                   if name in ("simple", "hub") and "of_naive" in point}
        if batch in batches:
            part.check(f"the source's result, batch {batch}, lane {lane}",
                       any(of["speed"] >= SOURCE_SPEED and of["bytes"] <= SOURCE_BYTES for of in reached.values()),
                       reached, f"{SOURCE_SPEED} times naive with {SOURCE_BYTES} of its bytes")


def resident(suite, part):
    """What the expert path costs where every expert lies on the device."""
    for name, widen in (("demo", []), ("widened", ["--widen", "2048,768"])):
        points = []
        # A process each: the first engine of a process is some percent faster than those after it.
        for policy in ("resident", "lru", "simple", "hub"):
            points += offload(suite, part, f"resident-{name}-{policy}", 45, *widen, "--capacities", "1", "--policies",
                              policy, "--batch", "1,4,16", "--steps", "150", "--warmup", "60")
        base = {point["batch"]: point["tokens_per_second"] for point in points if point["policy"] == "resident"}
        for point in points:
            share = point["tokens_per_second"] / base[point["batch"]]
            what = f"{name}, {point['policy']}, batch {point['batch']}"
            part.numbers[what] = {"tokens_per_second": round(point["tokens_per_second"], 1), "share": round(share, 3),
                                  "bytes_to_device": point["bytes_to_device"], "device_busy":
                                      round(point["device_busy_share"], 3)}
            if point["policy"] != "resident":
                part.check(what, share >= ALL_RESIDENT, share, f"{ALL_RESIDENT} of resident")


def doctor(suite, part):
    """A sound set-up, and each of those that are broken on purpose: is the cause named?"""
    command = [suite.comoe, "doctor", "--device", "cuda", "--model", suite.demo, "--widen", "1024,768", "--policy",
               "hub", "--expert-cache-fraction", "0.25", "--json"]
    for name, options, env, pattern in (
            ("sound", [], {}, None), ("pageable", ["--fault", "refuse-pinned"], {}, r"pageable source"),
            ("one-stream", ["--fault", "one-stream"], {}, r"one stream"),
            ("blocking", [], {"CUDA_LAUNCH_BLOCKING": "1"}, r"blocking launches")):
        run = suite.run(f"doctor-{name}", [*command, *options], 40, env)
        begin = run.output.find("{")
        try:
            report = json.JSONDecoder().raw_decode(run.output[begin:] if begin >= 0 else "")[0]
        except ValueError:
            part.check(f"doctor, {name}", False, f"exit {run.code}: {run.last_lines()}")
            continue
        findings = {finding["id"]: finding for finding in report["findings"]}
        overlap = findings.get("overlap.streams", {})
        part.numbers[name] = {"worst": report["worst"], "binding": report["binding"],
                              "overlap": overlap.get("measured"), "link": findings.get("link.rate", {}).get("measured"),
                              "not_ok": {key: finding["measured"] for key, finding in findings.items()
                                         if finding["severity"] in ("finding", "failure")}}
        if pattern is None:
            part.check("sound: copies and compute overlap", overlap.get("severity") == "ok", overlap.get("measured"))
            part.check("sound: no failure", report["worst"] != "failure", report["worst"])
        else:
            named = re.search(pattern, overlap.get("measured", ""))
            part.check(f"{name} is named", named and overlap["severity"] in ("finding", "failure"),
                       overlap.get("measured"), pattern)


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def metric(text, name):
    """The sum over a metric's label sets."""
    values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([-+\d.e]+)$", text, re.M)
    return sum(map(float, values)) if values else None


def serve_policy(suite, part, policy, share):
    prefix = f"serve-{policy}"
    server = suite.start(prefix, [suite.comoe, "serve", "--model", suite.demo, "--device", "cuda", "--policy", policy,
                                  *share, "--listen", f"127.0.0.1:{PORT}", "--metrics-listen",
                                  f"127.0.0.1:{METRICS_PORT}"])
    address = f"127.0.0.1:{PORT}"
    try:
        for _ in range(100):
            if suite.run(f"{prefix}-health", [suite.comoe, "health", "--server", address], 5).ok:
                break
            if server.poll() is not None:
                break
            time.sleep(0.1)
        told = suite.run(f"{prefix}-generate", [suite.comoe, "generate", "--server", address, "--prompt", "The ",
                                                "--max-tokens", "16", "--greedy"], 15)
        part.ran(told)
        load = suite.start(f"{prefix}-load", [suite.comoe, "bench", "serve", "--server", address, "--clients", "16",
                                              "--requests", "96", "--prompt-tokens", "64", "--output-tokens", "64",
                                              "--json", "--quiet"])
        time.sleep(0.5)
        during = get(f"http://127.0.0.1:{METRICS_PORT}/metrics")  # a scrape while the streams run
        try:
            load.wait(min(40.0, max(1.0, suite.left())))
        except subprocess.TimeoutExpired:
            load.kill()
            load.wait()
        output = suite.read_log(f"{prefix}-load")
        after = get(f"http://127.0.0.1:{METRICS_PORT}/metrics")
        begin = output.find("{")
        found = json.JSONDecoder().raw_decode(output[begin:] if begin >= 0 else "{}")[0]
        part.check(f"{prefix}: 96 requests over 16 streams", found.get("most_in_flight") == 16 and
                   not found.get("errors"), found.get("first_error") or found.get("most_in_flight"))
        names = set(re.findall(r"^(comoe_\w+)", after, re.M))
        part.check(f"{prefix}: metrics while it runs", "comoe_" in during, len(names))
        part.numbers[policy] = {
            "output_tokens_per_second": found.get("output_tokens_per_second"), "metrics": len(names),
            "first_token_ms": {k: round(1e3 * v, 2) for k, v in found.get("time_to_first_token_seconds", {}).items()},
            "inter_token_ms": {k: round(1e3 * v, 2) for k, v in found.get("inter_token_seconds", {}).items()},
            "scraped_during": {name: value for name in sorted(names) if name.endswith(("_running", "_tokens_total"))
                               for value in [metric(during, name)] if value is not None}}
        with open(suite.log(f"{prefix}-metrics"), "w", encoding="utf-8") as file:
            file.write(after)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            code = server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            code = server.wait()
        part.check(f"{prefix}: an orderly end", code == 0, code)


def serve(suite, part):
    """gRPC: 16 streams at once, metrics scraped meanwhile, an orderly end."""
    serve_policy(suite, part, "resident", [])
    serve_policy(suite, part, "hub", ["--expert-cache-fraction", "0.25"])


def timeline(suite, part):
    """What every lane does, as trace events; kept for Perfetto."""
    path = os.path.join(suite.logs, "timeline.json")
    offload(suite, part, "timeline", 30, "--widen", "1024,768", "--capacities", "0.25", "--policies", "hub",
            "--host-lane", "on", "--batch", "4", "--steps", "20", "--warmup", "20", "--timeline", path,
            "--timeline-steps", "60")
    if not part.check("a file", os.path.exists(path)):
        return
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    spans = {}
    for event in events:
        if event["ph"] == "X":
            lane = spans.setdefault(lanes[event["tid"]], {"spans": 0, "work_ms": 0.0, "wait_ms": 0.0})
            lane["spans"] += 1
            lane["wait_ms" if event.get("cat") == "wait" else "work_ms"] += event["dur"] / 1e3
    part.numbers = {lane: {key: round(value, 2) for key, value in sums.items()} for lane, sums in spans.items()}
    for lane in ("steps", "compute"):
        part.check(f"spans of {lane}", any(name.startswith(lane) for name in spans), sorted(spans))
    part.check("spans of copies", any(name.startswith("copy") for name in spans), sorted(spans))
    with open(path, "rb") as file, gzip.open(os.path.join(suite.out, "timeline.json.gz"), "wb") as packed:
        shutil.copyfileobj(file, packed)
    os.remove(path)


def step_watch(suite, part):
    """No allocation, default stream or device-wide wait in a step, by an interposer."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "step_watch.sh")
    if not os.path.exists(script):
        part.state = "skipped: there is no step_watch.sh"
        return
    run = suite.run("step_watch", ["sh", script, suite.directory, suite.logs], 80)
    try:
        with open(os.path.join(suite.logs, "step_watch.json"), encoding="utf-8") as file:
            runs = json.load(file)["runs"]
    except (OSError, ValueError):
        part.ran(run)
        return
    for name, result in runs.items():
        part.check(name, result["ok"], result.get("wrong") or result.get("why"))
    part.numbers = {name: result.get("per_step") for name, result in runs.items()}


PARTS = {"resident": resident, "doctor": doctor, "serve": serve, "timeline": timeline, "step_watch": step_watch,
         "bench": bench, "experts": experts}
