"""One release or one fit from start to end, shared by the command line, jobs and notebooks."""
