"""The demo on a cluster: ``spark-submit jobs/demo.py --out DIR``, DIR on storage that all nodes share."""

import sys

from dpagg.cli import run

if __name__ == "__main__":
    sys.exit(run(["demo", *sys.argv[1:]]))
