"""One HTML file with tables (pandas) and plots (matplotlib), without anything from elsewhere."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

STYLE = "body{font:15px system-ui;margin:2em;max-width:75em}table{border-collapse:collapse}td,th{padding:.3em .7em;border:1px solid #ccc;text-align:left;vertical-align:top}"


def _finished(title: str, figure: Any) -> str:
    figure.suptitle(title)
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight")
    pyplot.close(figure)
    drawn = out.getvalue()
    return drawn[drawn.index("<svg") :]


def bars(title: str, rows: dict[str, tuple[float, float, float]]) -> str:
    """A bar with its interval for each row: value, low, high."""
    figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.4 * len(rows)))
    for name, (value, low, high) in rows.items():
        axes.barh([name], [value], xerr=[[value - low], [high - value]], color="#7aa6d8", capsize=3)
    axes.invert_yaxis()
    return _finished(title, figure)


def histograms(title: str, rows: dict[str, Sequence[float]]) -> str:
    figure, axes = pyplot.subplots(figsize=(7, 3))
    axes.hist(list(rows.values()), bins=30, label=list(rows))
    axes.legend()
    return _finished(title, figure)


def reliability(title: str, predicted: Sequence[float], observed: Sequence[float]) -> str:
    """How often a text is relevant, by the probability that was predicted."""
    figure, axes = pyplot.subplots(figsize=(4, 4))
    axes.plot([0, 1], [0, 1], color="#bbb")
    axes.plot(predicted, observed, marker="o")
    axes.set_xlabel("predicted")
    axes.set_ylabel("relevant")
    return _finished(title, figure)


def write(path: Path, title: str, tables: Sequence[Any], plots: Sequence[str]) -> None:
    parts = [table.to_html(index=False, border=0) for table in tables]
    head = f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
    path.write_text("\n".join([head, f"<h1>{html.escape(title)}</h1>", *parts, *plots]), encoding="utf-8")
