"""What must stay the same when code is moved."""
