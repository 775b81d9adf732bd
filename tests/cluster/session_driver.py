"""A driver that runs one command after another, as lines of JSON come through a named pipe; for `Session`."""

import json
import sys
from pathlib import Path

from dpagg.cli import run

if __name__ == "__main__":
    requests, answers = map(Path, sys.argv[1:])
    with requests.open() as lines:
        for number, line in enumerate(lines):
            code = run(json.loads(line))
            partial = answers / f"{number}.new"
            partial.write_text(json.dumps(code))
            partial.rename(answers / str(number))
