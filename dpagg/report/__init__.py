"""Figures and pages made from ledgers, certificates and results alone."""
