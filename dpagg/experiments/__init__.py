"""Data sets, and comparisons with what is possible without privacy."""
