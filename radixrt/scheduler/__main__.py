"""Process 2, `python -P -m radixrt.scheduler`, started by `radixrt.launch`."""

from radixrt.garbage import postpone

if __name__ == "__main__":
    postpone()
    from radixrt.config import SchedulerConfig
    from radixrt.process import start
    from radixrt.scheduler.loop import SchedulerProcess

    SchedulerProcess(start("scheduler", SchedulerConfig)).run()
