"""One model on a release: ``spark-submit jobs/fit.py --config FILE [--set KEY=VALUE]``."""

import sys

from dpagg.cli import run_job

if __name__ == "__main__":
    sys.exit(run_job("fit", sys.argv[1:]))
