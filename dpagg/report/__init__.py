"""One page that says what a release is and what it promises, from its certificate and results alone."""

from dpagg.report.page import GENERATOR, render_report

__all__ = ["GENERATOR", "render_report"]
