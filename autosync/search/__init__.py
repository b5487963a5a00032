"""Tuning: proposes strategies, tries the promising ones, and proves the winner."""
