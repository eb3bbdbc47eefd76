"""Judges what step_watch.sh counted: what a step asks of the CUDA driver is what 60 steps do beyond 20.

step_watch.py OUT: reads OUT/step_watch-NAME-STEPS.json of every NAME, prints a line for each and a verdict, writes
OUT/step_watch.json, and exits 1 unless every step is free of allocations, default streams and device-wide waits.
"""
import json
import os
import re
import sys

ALLOCATES = re.compile(r"^cu(Mem(Alloc|Free|HostAlloc|HostRegister|HostUnregister|Create|Release|Map|Unmap|AddressReserve|"
                       r"AddressFree|PoolCreate|PoolDestroy)|(Array|MipmappedArray)(Create|Destroy)|Array3DCreate)")
WAITS_FOR_ALL = re.compile(r"^cu(Ctx|Device)Synchronize")
# Without a stream among their arguments they use a default one.
WITHOUT_STREAM = re.compile(r"^cuMem(cpy|set)(?!.*(Async|Node))")
LOADS = re.compile(r"^cu(Module|Library)Load")


def total(calls, pattern):
    return sum(count for name, count in calls.items() if pattern.search(name))


def sums(counts):
    """Of one run's file."""
    calls = counts["calls"]
    return {
        "allocations": total(calls, ALLOCATES),
        "device_wide_waits": total(calls, WAITS_FOR_ALL),
        "default_stream": sum(counts["default_stream"].values()) + total(calls, WITHOUT_STREAM),
        "module_loads": total(calls, LOADS),
        "launches": total(calls, re.compile(r"^cuLaunch(Cooperative)?Kernel")),
        "graph_launches": total(calls, re.compile(r"^cuGraphLaunch")),
        "copies": total(calls, re.compile(r"^cuMemcpy")),
        "waits_for_a_stream": total(calls, re.compile(r"^cu(Stream|Event)Synchronize")),
        "events_recorded": total(calls, re.compile(r"^cuEventRecord")),
        "calls": sum(calls.values()),
    }


FORBIDDEN = ("allocations", "device_wide_waits", "default_stream")


def judge(few, many, steps):
    """What `steps` more steps asked for, per step; and the names of calls that no step may make."""
    first, second = sums(few), sums(many)
    per_step = {name: (second[name] - first[name]) / steps for name in first}
    wrong = {}
    for pattern, table in ((ALLOCATES, "calls"), (WAITS_FOR_ALL, "calls"), (WITHOUT_STREAM, "calls"),
                           (re.compile(""), "default_stream")):
        for name, count in many[table].items():
            more = count - few[table].get(name, 0)
            if pattern.search(name) and more != 0:
                wrong[f"{name} on a default stream" if table == "default_stream" else name] = more
    return {"per_step": per_step, "at_start": {name: first[name] for name in FORBIDDEN}, "wrong": wrong,
            "ok": not wrong and all(per_step[name] == 0 for name in FORBIDDEN)}


def main(folder):
    runs = {}
    for file in sorted(os.listdir(folder)):
        found = re.fullmatch(r"step_watch-(.+)-(\d+)\.json", file)
        if found:
            with open(os.path.join(folder, file), encoding="utf-8") as opened:
                runs.setdefault(found[1], {})[int(found[2])] = json.load(opened)
    results = {}
    for name, by_steps in runs.items():
        if len(by_steps) != 2:
            results[name] = {"ok": False, "why": f"only the run of {list(by_steps)} steps left counts"}
            print(f"{name:16} {results[name]['why']}")
            continue
        few, many = sorted(by_steps)
        result = results[name] = judge(by_steps[few], by_steps[many], many - few)
        step = result["per_step"]
        print(f"{name:16} a step: allocations {step['allocations']:g}, waits for the device {step['device_wide_waits']:g}, "
              f"default stream {step['default_stream']:g}; launches {step['launches']:.1f}, graphs "
              f"{step['graph_launches']:.1f}, copies {step['copies']:.1f}, waits {step['waits_for_a_stream']:.1f}, "
              f"events {step['events_recorded']:.1f}: {'ok' if result['ok'] else 'WRONG ' + str(result['wrong'])}")
    ok = bool(results) and all(result["ok"] for result in results.values())
    with open(os.path.join(folder, "step_watch.json"), "w", encoding="utf-8") as opened:
        json.dump({"ok": ok, "runs": results}, opened, indent=1)
    print("step watch: " + ("ok" if ok else "FAILED" if results else "FAILED: nothing was counted"))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
