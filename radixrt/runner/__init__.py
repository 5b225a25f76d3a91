"""Process 3: it owns the tensors. Started as `python -P -m radixrt.runner`; see README.md for the reading order."""
