"""One release of private aggregates: ``spark-submit jobs/aggregate.py --config FILE [--set KEY=VALUE]``."""

import sys

from dpagg.cli import run_job

if __name__ == "__main__":
    sys.exit(run_job("aggregate", sys.argv[1:]))
