"""`scripts/bench NAME`: runs benchmarks/bench_NAME.py and prints its figures."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Bench

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main() -> None:
    """Parse the arguments, run one benchmark, print and write its figures."""
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--samples", type=int, default=3, help="runs of each measurement; their median counts")
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"), help="where the working folder is made")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="layerkit-bench-", dir=args.work) as folder:
        bench = Bench(Path(folder), args.samples)
        importlib.import_module(f"benchmarks.bench_{args.name}").run(bench)
    bench.print_table()
    if args.json:
        args.json.write_text(json.dumps(bench.result(), indent=2) + "\n")
    missed = [figure.name for figure in bench.figures if figure.met is False]
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)


if __name__ == "__main__":
    main()
