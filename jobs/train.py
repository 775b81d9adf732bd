"""One network on a release: ``spark-submit jobs/train.py --config FILE [--set KEY=VALUE]``."""

import sys

from dpagg.cli import run_job

if __name__ == "__main__":
    sys.exit(run_job("train", sys.argv[1:]))
