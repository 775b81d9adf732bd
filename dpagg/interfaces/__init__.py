"""What people know: functions for notebooks, and an estimator of scikit-learn."""
