"""Process 3, `python -P -m radixrt.runner`: `main.py`, imported without searches for garbage."""

import sys

from radixrt.garbage import postpone

if __name__ == "__main__":
    postpone()
    from radixrt.runner.main import main

    sys.exit(main())
