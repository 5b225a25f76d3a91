"""Short programs, each of one kind: `radixrt run lang/examples/NAME.py`. A small model errs: they show the form."""
