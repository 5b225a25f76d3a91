"""`python -m radixrt`: the same as the `radixrt` command."""

from radixrt.cli import main

if __name__ == "__main__":
    main()
