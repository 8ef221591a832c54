#!/usr/bin/env python3
"""Times Polyhead, through its C ABI, beside PyTorch and ONNX Runtime on the same arrays in one process.

Each pair (Polyhead, peer) works on one set of arrays in the peer's own favourite layout, runs interleaved, and is
checked to agree. Medians of --runs runs; a ratio is the median of the runs' (peer time / Polyhead time), so above 1
Polyhead is faster; ratios under 0.97 are flagged. Shares are of the ceilings that `polyhead bench` measures here.
Measures and never asserts: the exit status says only whether it ran and all results agreed. See bench/README.md.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

FLAG_BELOW = 0.97
SETTLE_SECONDS = 0.05  # threads of the contestant before stop waiting for more work and leave their processors
WARM_SECONDS = 0.02  # after the pause processors and L3 need some calls until all take as long
SHORT_CASE = "^full float32 n=1024 d=64$"  # of `polyhead bench`, which measures ceilings beside any case
ROOT = Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                     epilog="example: bench/peers.py --threads 1 --filter causal")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="where libpolyhead.so and polyhead are")
    parser.add_argument("--threads", default="1,2", help="thread counts, one table each (default 1,2)")
    parser.add_argument("--filter", default="", help="only the cases whose name matches this regular expression")
    parser.add_argument("--runs", type=int, default=9, help="interleaved runs (default 9)")
    parser.add_argument("--sample-ms", type=float, default=10,
                        help="calls shorter than this are repeated within a run until it is reached (default 10)")
    parser.add_argument("--json", action="store_true", help="JSON on stdout in place of the table")
    parser.add_argument("--list", action="store_true", help="names of the cases and nothing else")
    return parser.parse_args()


def pin(threads):
    """This thread and all it starts from now on keep to the first `threads` processors it may use."""
    allowed = sorted(pin.allowed)
    if len(allowed) < threads:
        sys.exit(f"peers.py: {threads} threads asked for, but only processors {allowed} may be used")
    os.sched_setaffinity(0, set(allowed[:threads]))


pin.allowed = os.sched_getaffinity(0)


def measured_ceilings(build, threads):
    """{float32_gflops, bfloat16_gflops, dram_gbps, ...} of this machine now, {} where the program is not built."""
    program = build / "polyhead"
    if not program.exists():
        print(f"peers.py: no {program}, so no shares", file=sys.stderr)
        return {}
    done = subprocess.run([program, "bench", "--filter", SHORT_CASE, "--json", "--threads", str(threads)],
                          capture_output=True, text=True)
    if done.returncode != 0:
        print(f"peers.py: no shares: {done.stderr.strip()}", file=sys.stderr)
        return {}
    return json.loads(done.stdout)["ceilings"]


def seconds_of(function, calls):
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def interleaved(functions, runs, sample_seconds):
    """[[seconds of each run] of each function], all functions once a run, with a pause and untimed calls before each;
    calls shorter than a sample repeat."""
    repeats = []
    for function in functions:
        function()  # the first call pays for pages, packing and thread starts
        repeats.append(max(1, round(sample_seconds / max(seconds_of(function, 1), 1e-7))))
    times = [[] for _ in functions]
    for _ in range(runs):
        for function, calls, into in zip(functions, repeats, times):
            time.sleep(SETTLE_SECONDS)
            seconds_of(function, 1 + int(calls * WARM_SECONDS / sample_seconds))
            into.append(seconds_of(function, calls))
    return times


def largest_difference(ours, theirs):
    import numpy as np

    a, b = ours().astype(np.float64), theirs().astype(np.float64)
    if a.shape != b.shape:
        return float("inf")
    return float(np.max(np.abs(a - b) / np.maximum(1, np.abs(a)), initial=0))  # NaN stays, and agrees with nothing


def run_case(case, threads, ceilings, options):
    """The rows of one case: every pair's times, ratio, shares and agreement."""
    ceiling = ceilings.get(case.bound)
    rows = []
    for pair in case.pairs:
        pair.theirs()  # first: a peer may append to a cache that both then read
        pair.ours()
        difference = largest_difference(pair.our_result, pair.their_result)
        ours, theirs = interleaved([pair.ours, pair.theirs], options.runs, options.sample_ms / 1e3)
        our_time, their_time = statistics.median(ours), statistics.median(theirs)

        def share(seconds):
            return pair.work / seconds / 1e9 / ceiling if ceiling else None

        ratio = statistics.median(b / a for a, b in zip(ours, theirs))
        rows.append({"case": case.name, "peer": pair.peer, "threads": threads, "polyhead_seconds": our_time,
                     "peer_seconds": their_time, "ratio": ratio, "polyhead_share": share(our_time),
                     "peer_share": share(their_time), "difference": difference, "tolerance": case.tolerance,
                     "agrees": difference <= case.tolerance, "slower": ratio < FLAG_BELOW})
    return rows


def print_row(row):
    def percent(share):
        return "    -" if share is None else f"{100 * share:4.0f}%"

    notes = (" SLOWER" if row["slower"] else "") + \
        ("" if row["agrees"] else f" DISAGREES by {row['difference']:.2g} > {row['tolerance']:.2g}")
    print(f"{row['case']:<38} {row['threads']:>2} {1e3 * row['polyhead_seconds']:>10.4f} "
          f"{percent(row['polyhead_share'])}  {row['peer']:<24} {1e3 * row['peer_seconds']:>10.4f} "
          f"{percent(row['peer_share'])} {row['ratio']:>7.2f}{notes}", flush=True)


def main():
    options = parse_arguments()
    counts = [int(count) for count in options.threads.split(",")]
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(max(counts)))
    from peers_cases import Session, cases

    wanted = [(name, make) for name, make in cases() if re.search(options.filter, name)]
    if options.list:
        print("\n".join(name for name, _ in wanted))
        return 0
    rows, report = [], {"runs": options.runs, "tables": []}
    for threads in counts:
        pin(threads)
        ceilings = measured_ceilings(options.build, threads)
        session = Session(options.build / "libpolyhead.so", threads)
        report["tables"].append({"threads": threads, "ceilings": ceilings, **session.versions()})
        if not options.json:
            print(", ".join(f"{key} {value}" for key, value in session.versions().items()))
            print(f"\n{'case':<38} {'t':>2} {'polyhead ms':>10} share  {'peer':<24} {'peer ms':>10} share   ratio")
        for name, make in wanted:
            if sys.stderr.isatty():
                print(f"\r\033[K{name}, {threads} threads\r", end="", file=sys.stderr, flush=True)
            for row in run_case(make(session, name), threads, ceilings, options):
                rows.append(row)
                if not options.json:
                    print_row(row)
    report["rows"] = rows
    slower = [row for row in rows if row["slower"]]
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        worst = min(rows, key=lambda row: row["ratio"], default=None)
        print(f"\n{len(rows)} comparisons, {len(slower)} under {FLAG_BELOW}" +
              (f"; the lowest ratio is {worst['ratio']:.2f} ({worst['case']}, {worst['peer']})" if worst else ""))
    return 0 if all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
