"""Process 1, `python -P -m radixrt.tokenizer`: `main.py`, imported without searches for garbage."""

import sys

from radixrt.garbage import postpone

if __name__ == "__main__":
    postpone()
    from radixrt.tokenizer.main import main

    sys.exit(main())
