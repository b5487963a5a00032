"""Predicts how training scales: step times, throughput and cost of a model on more or fewer nodes than there are."""
