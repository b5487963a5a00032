"""Plans that stock DDP can express, carried out by torch's own reducer.

`buckets` decides which plans these are and what their buckets are, `reducer` runs torch's reducer on them, and
`stock_session` is the session of such a model. It has the same interface as `session.session`, and starts no engine.
"""
