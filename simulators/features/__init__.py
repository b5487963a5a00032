"""The features that learned simulators read: named numbers with the same meaning for every model and cluster."""
