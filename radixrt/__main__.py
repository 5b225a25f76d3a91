"""`python -m radixrt`: the same as the `radixrt` command."""

from radixrt.cli import main

main()
