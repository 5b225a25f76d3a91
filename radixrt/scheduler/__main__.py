"""Process 2: `python -m radixrt.scheduler`, started by `radixrt.launch`."""

from radixrt.config import SchedulerConfig
from radixrt.process import start
from radixrt.scheduler.loop import SchedulerProcess

if __name__ == "__main__":
    SchedulerProcess(start("scheduler", SchedulerConfig)).run()
