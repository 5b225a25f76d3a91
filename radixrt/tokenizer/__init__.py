"""Process 1 (`python -P -m radixrt.tokenizer`): it owns text. See README.md."""
