"""Measurements, with a folder for each question. A folder's README tells how to run it and where the result is."""
