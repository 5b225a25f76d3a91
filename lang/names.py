"""Which variables a state has: names are declared when they are written, values come later."""

from __future__ import annotations

import threading

from radixrt.errors import InvalidRequest
from radixrt.lang.errors import UnknownVariable
from radixrt.lang.executor import Branch
from radixrt.lang.variables import Variable


class Names:
    """The names of one state. Written by its body's thread; may be read by another while the body runs (`stream`)."""

    def __init__(self, branch: Branch, variables: dict[str, Variable]) -> None:
        self._branch = branch
        self._run = branch.run
        self._variables = variables

    def declare(self, name: str | None, variable: Variable) -> Variable:
        """From now on the name means this variable; None is a variable that nobody can read."""
        if name is not None:
            with self._run.changed:
                self._variables[name] = variable
                self._run.changed.notify_all()
        return variable

    def extend(self, name: str, item: Variable) -> None:
        """The name becomes a list with one more item; InvalidRequest where it already stands for something else."""
        with self._run.changed:
            old = self._variables.get(name)
            if old is not None and not old.items:
                raise InvalidRequest(f"append=True: {name!r} is a variable already, and no list", param="append")
        self.declare(name, Variable.growing(name, (*(old.items if old else ()), item)))

    def known(self) -> dict[str, Variable]:
        """A copy of what was declared so far."""
        with self._run.changed:
            return dict(self._variables)

    def find(self, name: str) -> Variable:
        """The variable of a name. Where the body runs in another thread it may declare the name yet: then this waits.

        Raises what ended the body, if anything did, and else UnknownVariable.
        """
        run = self._run
        with run.changed:
            if self.body_runs_elsewhere():
                run.changed.wait_for(lambda: name in self._variables or run.ended)
            variable = self._variables.get(name)
        if variable is not None:
            return variable
        if run.body_error is not None:
            raise run.body_error.with_traceback(None)
        raise UnknownVariable(name, self.known(), program=run.program, branch=self._branch.label)

    def body_runs_elsewhere(self) -> bool:
        run = self._run
        return run.streaming and not run.ended and run.body_thread != threading.get_ident()
