"""What scripts/demo prints, made from what the program said with --json.

usage: demo_table.py line RECORDS      the last record, for people
       demo_table.py ref BUILD         the reference that a build ended with
       demo_table.py failure BUILD     the last output of a step that failed
       demo_table.py table LOG         everything, at the end

A record is `name TAB seconds TAB last line of output`; LOG is the folder with the records and the snapshots of status.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from layerkit._util.text import format_bytes, format_seconds

LAYERKIT = Path(sys.executable).parent / "layerkit"


class Record(NamedTuple):
    """One step of the demo."""

    name: str
    seconds: float
    output: str

    @property
    def result(self) -> dict[str, Any]:
        """What a command with --json ended with; empty for other output."""
        if not self.output.startswith('{"result"'):
            return {}
        found = json.loads(self.output)["result"]
        assert isinstance(found, dict)
        return found

    @property
    def remark(self) -> str:
        """What came of it, in a few words."""
        result = self.result
        if "cached_steps" in result:
            ran = result["steps"] - result["cached_steps"]
            return f"{ran} of {result['steps']} steps ran, {format_bytes(result['stored_bytes'])} stored"
        if "plain_bytes" in result:
            return f"{format_bytes(result['plain_bytes'])}, {format_bytes(result['stored_bytes'])} stored"
        return "" if result or "sha256:" in self.output else self.output


def read_records(path: Path) -> list[Record]:
    """All steps so far."""
    rows = [line.split("\t", 2) for line in path.read_text().splitlines()]
    return [Record(name, float(seconds), output) for name, seconds, output in rows]


def print_line(record: Record) -> None:
    """One step, when it is done."""
    print(f"   {record.name:28} {format_seconds(record.seconds):>9}   {record.remark}".rstrip(), flush=True)


def print_failure(path: Path) -> None:
    """The last pieces of a failed step's output, out of the events of a build where it is one."""
    pieces = []
    for line in path.read_text(errors="replace").splitlines():
        event = json.loads(line) if line.startswith("{") else {"event": "output", "data": f"{line}\n"}
        if event.get("event") == "step":
            pieces = [f"{event['text']}\n"]
        elif event.get("event") == "output" and "encoding" not in event:
            pieces.append(event["data"])
    print("\n".join("".join(pieces).splitlines()[-40:]))


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns aligned: numbers to the right, the first and one that is called '' to the left."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    print(f"\n{title}")
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if title else cell.ljust(width)
            for cell, width, title in zip(row, widths, ("", *header[1:]), strict=True)
        ]
        print("   " + "  ".join(cells).rstrip())


def layer_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row a published layer; `stored` is what it added when it was built, its steps included."""
    listed = subprocess.run([LAYERKIT, "ls", "--json"], check=True, capture_output=True, text=True).stdout
    layers = [json.loads(line) for line in listed.splitlines()]
    # The first build counts: the others found it all there.
    added = {rec.result["ref"]: rec.result["stored_bytes"] for rec in reversed(records) if "ref" in rec.result}
    return [
        [
            layer["ref"], format_bytes(layer["plain_bytes"]),
            format_bytes(layer["meta_bytes"] + layer["chunk_index_bytes"]), format_bytes(layer["stored_bytes"]),
            format_bytes(added[layer["ref"]]) if layer["ref"] in added else "",
        ]
        for layer in layers if layer.get("origin") == "published"
    ]  # fmt: skip


def read_rows(log: Path) -> list[list[str]]:
    """What the running host had read of the store, at each moment."""
    moments = [
        ("to mount it", "mounted", ""),
        ("to the first output of the tests", "first.cold", "mounted"),
        ("to the end of the tests", "done.cold", "mounted"),
        ("git --version, node --version", "after.cold", "done.cold"),
        ("again, with the new toolkit: to the first output", "first.warm", "after.cold"),
        ("to the end of the tests", "done.warm", "after.cold"),
        ("git --version, node --version", "after.warm", "done.warm"),
    ]
    rows = []
    for title, name, since in moments:
        counts, before = _counts(log, name), _counts(log, since) if since else {}
        size, reads = (counts[key] - before.get(key, 0) for key in ("store_read_bytes", "store_reads"))
        seconds = log / f"first.{name.removeprefix('first.')}"
        took = format_seconds(float(seconds.read_text())) if name.startswith("first.") else ""
        rows.append([title, format_bytes(size), f"{reads:.0f}", took])
    return rows


def _counts(log: Path, name: str) -> dict[str, float]:
    counts = json.loads((log / f"status.{name}").read_text())["counts"]
    assert isinstance(counts, dict)
    return counts


def print_all(log: Path) -> None:
    """The tables at the end."""
    records = read_records(log / "records")
    print_table("Layers", ["", "files", "metadata", "in packs", "added when built"], layer_rows(records))
    print_table("Read of the store by the host that runs", ["", "bytes", "reads", "after"], read_rows(log))
    rows = [[record.name, format_seconds(record.seconds), record.remark] for record in records]
    print_table("Steps", ["", "time", ""], rows)


def main() -> None:
    """One of the four things that the usage names."""
    what, path = sys.argv[1], Path(sys.argv[2])
    if what == "line":
        print_line(read_records(path)[-1])
    elif what == "ref":
        print(json.loads(path.read_text().splitlines()[-1])["result"]["ref"])
    elif what == "failure":
        print_failure(path)
    else:
        print_all(path)


if __name__ == "__main__":
    main()
