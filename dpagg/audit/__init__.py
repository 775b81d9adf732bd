"""Attacks on the mechanisms' own kernels: a lower bound on epsilon that must stay under the claim, and come close."""
