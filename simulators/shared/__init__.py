"""What several simulators need: costs, which ranks do the same, what transfers put on links, seconds of shapes."""
