"""Guesses of what rows sample next, verified in one pass: see README.md."""
