"""Colours of the page, light and dark. Text has a contrast of at least 4.5 to 1, which a test computes."""

from __future__ import annotations

# ground: the page; panel: boxes on it. Everything in TEXT is set on both.
LIGHT = {
    "ground": "#ffffff",
    "panel": "#f3f5f7",
    "ink": "#1a1f25",
    "muted": "#4b5661",
    "accent": "#0a58a6",
    "claim": "#a3301a",
    "good": "#17602e",
    "warn": "#7a4b00",
    "line": "#c9d0d7",
}
DARK = {
    "ground": "#13171c",
    "panel": "#1d232a",
    "ink": "#e9edf1",
    "muted": "#aeb8c2",
    "accent": "#7db9ff",
    "claim": "#ff9f85",
    "good": "#82d89c",
    "warn": "#efc069",
    "line": "#434d58",
}
TEXT = ("ink", "muted", "accent", "claim", "good", "warn")
GROUNDS = ("ground", "panel")


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours ``#rrggbb`` by WCAG 2, from 1 to 21."""
    brighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
