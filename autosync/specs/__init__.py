"""What is known of a task, a model and a cluster, as plain values checked where files are read."""
