"""Tunes an unchanged script while it trains: the trials are steps of its training.

    autosync tune --cluster C -- train.py ARGS

- `rank`: the program of each rank, which runs the script and serves requests where steps begin;
- `launch`: starts these ranks, and asks them;
- `counting`: which steps count;
- `service`: the trial service that a study measures strategies with, on the running script;
- `space`: the strategies that a script's door allows;
- `plan`: the study of a script;
- `tuner`: the search and the proof on a running script;
- `cost`: what tuning cost, and when it has paid;
- `drift`: whether the steps of a training have become slower for good;
- `kept_training`: a training that goes on after it was tuned, and is watched;
- `tune_script`: all of it in one function.

Everything else is as in other studies (`autosync.search`): proposers and simulators, the measurement of a trial, the
proof, the records and the summary.
"""
