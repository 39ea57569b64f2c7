"""Metrics in the text exposition format of Prometheus (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tabhelm.observe.durations import BOUNDS, Durations
from tabhelm.observe.metrics import Metrics, ResourceMetrics

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


def exposition(metrics: Metrics, shown: Callable[[str], str]) -> str:
    """The text. ``shown`` turns a resource into what may leave the browser."""
    names = {resource: {"resource": shown(resource)} for resource in metrics.resources}

    def each(value: Callable[[ResourceMetrics], float]) -> list[Sample]:
        return [(names[resource], value(item)) for resource, item in metrics.resources.items()]

    def by(label: str, value: Callable[[ResourceMetrics], Mapping[str, int]]) -> list[Sample]:
        return [
            ({**names[resource], label: word}, count)
            for resource, item in metrics.resources.items()
            for word, count in value(item).items()
        ]

    lines: list[str] = []
    for name, kind, what, samples in (
        ("leaders_acting", "gauge", "Tabs that are said to lead now.", each(lambda m: m.leaders_acting)),
        ("acquisitions_total", "counter", "Beginnings of leadership.", each(lambda m: m.acquisitions)),
        ("acquisition_failures_total", "counter", "Standing by that failed.", by("reason", lambda m: m.failures)),
        ("step_downs_total", "counter", "Ends of leadership.", by("reason", lambda m: m.step_downs)),
        ("loop_overruns_total", "counter", "Loops that outlived their grace.", each(lambda m: m.overruns)),
        ("loop_failures_total", "counter", "Loops that raised.", each(lambda m: m.loop_failures)),
        ("takeovers_total", "counter", "Takeovers by force.", each(lambda m: m.takeovers)),
        ("writes_refused_total", "counter", "Writes refused by a receiver.", by("verdict", lambda m: m.refused)),
        ("acting_alarms_total", "counter", "Alarms: no leader, or several.", by("kind", lambda m: m.alarms)),
        ("messages_ignored_total", "counter", "Messages not for us.", _words("cause", metrics.ignored)),
        ("events_total", "counter", "Events by type.", _words("type", metrics.events)),
        ("tabs", "gauge", "Tabs in the roster.", [({}, metrics.tabs)]),
        ("locks_held", "gauge", "Locks of the app that are held.", [({}, metrics.locks_held)]),
        ("locks_lost_total", "counter", "Locks that ended under their body.", [({}, metrics.locks_lost)]),
        ("lock_timeouts_total", "counter", "Locks not free in time.", [({}, metrics.lock_timeouts)]),
    ):
        lines += _family(name, kind, what, samples)
    waits = [(names[resource], item.wait) for resource, item in metrics.resources.items()]
    holds = [(names[resource], item.hold) for resource, item in metrics.resources.items()]
    lines += _histogram("wait_seconds", "From first asking until leading.", waits)
    lines += _histogram("hold_seconds", "From leading until the lock was given back.", holds)
    return "\n".join(lines) + "\n"


def _words(label: str, counts: Mapping[str, int]) -> list[Sample]:
    return [({label: word}, count) for word, count in counts.items()]


def _family(name: str, kind: str, what: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"{name}{_labels(labels)} {value}" for labels, value in samples]
    return [f"# HELP tabhelm_{name} {what}", f"# TYPE tabhelm_{name} {kind}", *(f"tabhelm_{line}" for line in lines)]


def _histogram(name: str, what: str, found: Iterable[tuple[Labels, Durations]]) -> list[str]:
    lines = [f"# HELP tabhelm_{name} {what}", f"# TYPE tabhelm_{name} histogram"]
    for labels, durations in found:
        total = 0
        for bound, count in zip((*(f"{bound:g}" for bound in BOUNDS), "+Inf"), durations.classes, strict=True):
            total += count
            lines.append(f"tabhelm_{name}_bucket{_labels({**labels, 'le': bound})} {total}")
        lines.append(f"tabhelm_{name}_sum{_labels(labels)} {durations.sum:.6f}")
        lines.append(f"tabhelm_{name}_count{_labels(labels)} {durations.count}")
    return lines


def _labels(labels: Labels) -> str:
    inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
