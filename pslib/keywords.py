"""Unknown keywords: an error in one line that names the nearest keyword, also from other libraries' words."""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Collection, Iterable
from typing import Any

from pslib.errors import ConfigurationError
from pslib.suggestions import ELSEWHERE, nearest

_RATES = (
    "learning rates and optimizers: "
    "Trainer(optimizers={'rows': pslib.Adagrad(0.05), 'dense': pslib.Adam(0.001)})"
)
LABEL_IN_DATA = "the label is a column of data, which the schema names"
_OF_OTHERS = dict.fromkeys(("optimizer", "optimizers", "optim", "lr", "learning_rate"), _RATES) | {
    "batch_size": "the size of a batch is Trainer(batch_rows=...)",
    "callbacks": "callbacks are given to the trainer: Trainer(..., callbacks=[...])",
    "epochs": "the number of epochs is trainer.fit(data, epochs=...)",
    **dict.fromkeys(("y", "X"), LABEL_IN_DATA),
}
"""Places of keywords that a call does not take."""


class UnknownKeywordError(ConfigurationError, TypeError):
    """A call was given a keyword that it does not take."""


def hint_of(name: str, known: Collection[str]) -> str:
    """Return what may be meant by a keyword: another one, the place where it is, or all there are."""
    if name in _OF_OTHERS and ELSEWHERE.get(name) not in known:
        return _OF_OTHERS[name]
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"it takes {', '.join(known)}"


def refuse_unknown(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse keywords that a call does not take.

    Parameters
    ----------
    call : str
        Its name, for messages.
    given : iterable of str
        The keywords that it was given.
    known : collection of str
        Names of its parameters.

    Raises
    ------
    UnknownKeywordError
        One line for each.
    """
    lines = [
        f"{call}: unknown keyword {name!r}; {hint_of(name, known)}" for name in given if name not in known
    ]
    if lines:
        raise UnknownKeywordError(*lines) from None  # where Python's own error is handled, it says less


def refuse_many(call: str, given: int, known: Collection[str], first: Collection[str]) -> None:
    """Refuse more values without a name than a call takes.

    Parameters
    ----------
    call : str
        Its name, for messages.
    given : int
        Number of values that it was given without a name.
    known, first : collection of str
        Names of its parameters, and of those that may be given without their name.

    Raises
    ------
    UnknownKeywordError
    """
    if given > len(first):
        named = ", ".join(f"{name}=..." for name in known if name not in first)
        takes = f"{', '.join(first)}{f' and, by name, {named}' if named else ''}"
        hint = f"; {LABEL_IN_DATA}" if "data" in first else ""
        raise UnknownKeywordError(
            f"{call}: expected {takes}, got {given} values without a name{hint}"
        ) from None


class Keywords(ABCMeta):
    """Class whose constructor names the nearest keyword where it is given an unknown one."""

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        """Make an object; Python's own error for missing arguments, or too many."""
        try:
            return super().__call__(*args, **keywords)
        except TypeError:
            refuse_unknown(cls.__name__, keywords, list(cls.__signature__.parameters))
            raise

    @property
    def __signature__(cls) -> inspect.Signature:
        """Signature of the constructor: `__call__` hides it."""
        own = inspect.signature(cls.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:])
