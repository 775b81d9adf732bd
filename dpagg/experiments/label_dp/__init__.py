"""The experiments of the label-DP paper: bags allowed, losses of the mechanisms, networks; on any table.

Their numbers are read off the rows without noise, and releases are drawn from public seeds: for papers and tests, on
data whose labels may be seen.
"""
