"""Functions of arrays: encoding, factors, leverages, weights. Nothing here knows Spark or a path."""
