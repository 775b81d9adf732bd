"""Everything that touches Spark and Delta: session, reading, engines, output."""
