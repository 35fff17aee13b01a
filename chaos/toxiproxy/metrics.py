"""Counters of the proxies in the text format that Prometheus reads; names and labels as in Toxiproxy's METRICS.md."""

from __future__ import annotations

from collections.abc import Collection

from chaos.toxiproxy.proxy import STREAMS, Proxy


def metrics_text(proxies: Collection[Proxy]) -> str:
    lines: list[str] = []
    for what in ("received", "sent"):
        name = f"toxiproxy_proxy_{what}_bytes_total"
        lines += [f"# HELP {name} Bytes {what} on the links of a proxy, by direction.", f"# TYPE {name} counter"]
        for proxy in proxies:
            for stream, counter in zip(STREAMS, proxy.counters, strict=True):
                labels = {"direction": stream, "listener": proxy.listen, "proxy": proxy.name, "upstream": proxy.upstream}
                inside = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
                lines.append(f"{name}{{{inside}}} {counter.received if what == 'received' else counter.sent}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
