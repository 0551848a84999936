"""What the baseline itself is held against: scalar loops and finite differences."""
