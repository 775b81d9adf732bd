"""What each mechanism costs: exact privacy curves, calibration, composition and certificates."""
