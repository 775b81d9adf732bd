"""Tables in memory (pandas, Arrow): the same kernels, no Spark."""
