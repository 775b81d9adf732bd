"""The two tables of the label-DP paper, Criteo's conversion log and the 1940 census, as they are distributed.

`criteo` and `census` say how the real files are read, as sections of a configuration; `stand_ins` writes synthetic
files in the same formats.
"""
