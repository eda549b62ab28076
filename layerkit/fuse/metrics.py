"""hostd's Prometheus metrics: the counts of `fuse.events` and the state of the moment; imported by hostd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from layerkit.fuse.events import Counts

COUNTS: Mapping[str, str] = {
    "store_reads": "Reads of stores, whole objects and ranges",
    "store_read_bytes": "Bytes that came from stores, metadata included",
    "fetch_requests": "Ranged reads of packs",
    "fetched_bytes": "Stored bytes that came from stores",
    "fetch_seconds": "Seconds spent in ranged reads, summed over threads",
    "failed_fetches": "Fetches that brought an error",
    "corrupt_frames": "Frames or chunks with other bytes than promised",
    "copied_bytes": "Plain bytes copied from other layers of this host",
    "checked_bytes": "Plain bytes of the durable map's claims that were right",
    "damaged_chunks": "Chunks of the durable map's claims that were not",
    "faults": "Ranges that serving processes asked for",
    "failed_faults": "Those answered with EIO",
    "fault_seconds": "Seconds that readers waited, summed",
    "layers_mounted": "Layers mounted for leases",
}


class HostCollector:
    """Collects when it is scraped.

    Args:
        gauges: name to (meaning, value) of the moment.
    """

    def __init__(self, counts: Counts, gauges: Callable[[], Mapping[str, tuple[str, float]]]) -> None:
        self._counts = counts
        self._gauges = gauges

    def collect(self) -> Iterator[Any]:
        """For the registry."""
        for name, meaning in COUNTS.items():
            family = CounterMetricFamily(f"layerkit_{name}", meaning)
            family.add_metric([], self._counts.get(name))
            yield family
        for name, (meaning, value) in self._gauges().items():
            gauge = GaugeMetricFamily(f"layerkit_{name}", meaning)
            gauge.add_metric([], value)
            yield gauge


def render_metrics(collector: HostCollector) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return bytes(generate_latest(registry))
