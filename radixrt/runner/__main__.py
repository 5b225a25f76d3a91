"""Process 3, `python -P -m radixrt.runner`: `main.py`, imported without searches for garbage."""

import sys
from threading import Thread

from radixrt.garbage import postpone
from radixrt.runner.preload import load_library

if __name__ == "__main__":
    postpone()
    Thread(target=load_library, name="load-library", daemon=True).start()
    from radixrt.runner.main import main

    sys.exit(main())
