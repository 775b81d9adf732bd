"""Differentially private aggregates of labelled tables, and regression on them."""

__version__ = "0.1.0"
