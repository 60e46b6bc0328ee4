"""Settings: dataclasses whose annotations define type, bounds, unit and help of each field, once.

``Annotated[int, Setting("Examples of a batch.", ge=1, le=1 << 24, unit="examples")]`` is type, bounds, unit
and help. Python checks them when an object is made, the job file when it is read (pydantic reads the same
annotation), and ``pslib config schema`` and ``docs/reference/settings.md`` are written from them. These are
standard dataclasses: pydantic's would cost every process its import, and take NumPy's numbers for none.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache, wraps
from math import inf
from numbers import Integral, Real
from types import NoneType
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast, get_args, get_origin

from pslib.errors import ConfigurationError
from pslib.keywords import Keywords, refuse_unknown
from pslib.suggestions import nearest, unknown_key, unknown_value
from pslib.validation import TOLD_MAX, came, hints_of, is_finite, kind_problem, plain_fields

KindT = TypeVar("KindT")
SelfT = TypeVar("SelfT")
FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")
Given = ParamSpec("Given")

_KINDS = {int: "a whole number", float: "a number"}
_MANY = {int: "whole numbers", float: "numbers"}
NOT_EMPTY = r"[\s\S]+"
"""Pattern of a text that is not empty."""
FLOAT32_MIN, FLOAT32_MAX = 2.0**-149, 2.0**128 - 2.0**104
"""Least and largest number above 0 of float32."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Bounds, unit and help of a field, beside the type in its annotation.

    Attributes
    ----------
    help : str
        One sentence.
    ge, gt, le, lt : float or None
        Bounds of a number, or of each number of a list.
    unit : str
        Unit of a number. A job file takes texts like 16GB for ``bytes``.
    choices : tuple of str
        All values of a text.
    pattern, texts : str
        Pattern that a text must match, as a regular expression and for people.
    kinds : tuple of type
        Classes of which a mapping names one, ``{name: Cosine, batches: 20000}``; see `read_named`.
    finite : bool
        True if an infinite number is refused.
    float32 : bool
        True if a kernel takes the number as float32: it must be finite there, and 0 only if it is 0.
    example : str
        Expression that makes a value of the field's class, for messages.
    none : object
        Value that None stands for; None if it stands for itself.
    """

    help: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    pattern: str = ""
    texts: str = ""
    kinds: tuple[type, ...] = ()
    finite: bool = True
    float32: bool = False
    example: str = ""
    none: Any = None

    @property
    def names(self) -> dict[str, type]:
        """The `kinds` by name."""
        return {kind.__name__: kind for kind in self.kinds}

    @property
    def bounds(self) -> str:
        """Bounds in words, ``1..64``, ``0 or more``; empty without any."""
        if self.choices or self.pattern or self.texts or self.kinds:
            return self.texts or ", ".join(self.choices or self.names) or "not empty"
        if self.ge is not None and self.le is not None:
            return f"{_shown(self.ge)}..{_shown(self.le)}"
        low = "" if self.ge is None else f"{_shown(self.ge)} or more"
        low = low if self.gt is None else f"above {_shown(self.gt)}"
        high = "" if self.le is None else f"at most {_shown(self.le)}"
        high = high if self.lt is None else f"below {_shown(self.lt)}"
        return " and ".join(filter(None, (low, high)))

    def problem(self, name: str, value: Any, hint: Any) -> str | None:
        """Return the problem of a value of a field of this type, one line; None if it is valid."""
        optional = NoneType in get_args(hint)
        if optional and value is None:
            return None
        if self.choices or self.pattern:
            fits = isinstance(value, str) and (value in self.choices or self._matches(value))
            expected = self.texts or (f"one of {self.bounds}" if self.choices else "a text that is not empty")
            return None if fits else f"{name}: expected {expected}, got {came(value)}"
        kind = next(iter(get_args(hint)), None) if optional else hint
        if kind in _KINDS:
            return None if self._holds(value, kind) else f"{name}: {self._expected(kind)}, got {came(value)}"
        if self.bounds and _is_list(kind) and (of := get_args(kind)[0]) in _KINDS:
            if isinstance(value, list | tuple) and all(self._holds(one, of) for one in value):
                return None
            return f"{name}: expected a list of {_MANY[of]} in {self.bounds}, got {came(value)}"
        line = kind_problem(name, value, hint)
        return line.replace(", got ", f", as in {self.example}, got ", 1) if line and self.example else line

    def _matches(self, value: str) -> bool:
        return bool(self.pattern) and re.fullmatch(self.pattern, value) is not None

    def _holds(self, value: Any, kind: type) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
            return False
        if not is_finite(value) and (self.finite or value != inf):
            return False
        number: Any = value
        if self.float32 and number and not FLOAT32_MIN <= abs(number) <= FLOAT32_MAX:
            return False
        is_above = (self.gt is None or number > self.gt) and (self.ge is None or number >= self.ge)
        return is_above and (self.le is None or number <= self.le) and (self.lt is None or number < self.lt)

    def _expected(self, kind: type) -> str:
        bounds = self.bounds
        if self.float32 and self.le is None:
            bounds = f"{bounds} and finite in float32" if bounds else "that is finite in float32"
        elif kind is float and self.finite and not bounds:
            return "expected a finite number"
        what = "seconds" if self.unit == "seconds" else _KINDS[kind]
        comma = " or " in bounds or what == "seconds"
        link = " in " if ".." in bounds else ", " if comma else " "
        return f"expected {what}{link}{bounds}".rstrip()

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Give pydantic the bounds, so that errors of a job file read alike in all sections."""
        if self.kinds:
            read = _calling(self._read_several if _is_list(source) else self._read)
            written = {"type": "function-plain", "function": self._written}
            return {"type": "function-plain", "function": read, "serialization": written}
        schema = handler(source)
        inner = schema
        while inner["type"] in ("nullable", "default"):
            inner = inner["schema"]
        for one in (inner, *inner.get("choices", ())):
            self._bind(one)
        if self.choices:
            inner.clear()
            inner |= {"type": "literal", "expected": list(self.choices)}
        if self.unit == "bytes":
            schema = {"type": "function-before", "function": _calling(_bytes_of), "schema": schema}
        if self.pattern or inner["type"] == "union":
            function = _calling(self._checker(source, object if inner["type"] == "union" else str))
            schema = {"type": "function-before", "function": function, "schema": schema}
        return schema

    def _bind(self, schema: Any) -> None:
        """Set bounds of a number, and accept a list where a tuple stands."""
        if schema["type"] in ("int", "float"):
            named = ("ge", "gt", "le", "lt")
            schema |= {key: bound for key in named if (bound := getattr(self, key)) is not None}
        if schema["type"] == "float":
            schema["allow_inf_nan"] = not self.finite
        if schema["type"] == "tuple":
            schema["strict"] = False  # of a list, not of its elements
            for element in schema["items_schema"]:
                self._bind(element)

    def _checker(self, hint: Any, of: type) -> Callable[[Any], Any]:
        """Return a check by one line, where pydantic has one for each type of a union, or none."""

        def checked(value: Any) -> Any:
            if isinstance(value, of) and (line := self.problem("", value, hint)):
                raise ValueError(line.removeprefix(": "))
            return value

        return checked

    def read(self, at: str, plain: Any) -> Any:
        """Return a value as Python has it, of one as a job file has it: a mapping names one of the `kinds`.

        Raises
        ------
        ConfigurationError
            If the mapping is wrong; each line begins with the path ``at``.
        """
        if not self.kinds or not isinstance(plain, Mapping):
            return plain
        return read_named(at, plain, self.names, self.plain_example)

    def _read(self, plain: Any, at: str = "") -> Any:
        """Read one of the `kinds` for pydantic."""
        if plain is None or isinstance(plain, self.kinds):
            return plain
        try:
            return read_named(at, plain, self.names, self.plain_example)
        except ConfigurationError as error:
            raise SettingsError(error.problems) from error

    def _read_several(self, plain: Any) -> Any:
        if not isinstance(plain, list):
            raise ValueError(f"expected a list, for example {self.plain_example}, got {came(plain)}")
        read, problems = [], list[str]()
        for place, one in enumerate(plain):
            try:
                read.append(self._read(one, f".{place}"))
            except SettingsError as error:
                problems += error.problems
        if problems:
            raise SettingsError(problems)
        return read

    def _written(self, value: Any) -> Any:
        """Return the mapping that `_read` reads back, or a list of them."""
        if isinstance(value, tuple):
            return [one.to_dict() for one in value]
        return None if value in (None, self.none) else value.to_dict()

    @property
    def plain_example(self) -> str:
        """The example as a job file has it."""

        def written(made: re.Match[str]) -> str:
            return f"{{name: {made[1]}, {made[2].replace('=', ': ')}}}"

        return re.sub(r"pslib\.(\w+)\((.*?)\)", written, self.example)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> Any:
        """Give editors bounds, and help with its unit."""
        told = self._json_of_kinds() if self.kinds else handler(schema)
        told |= {"description": f"{self.help} In {self.unit}." if self.unit else self.help}
        if self.unit == "bytes":
            told |= {"type": ["integer", "string"]}  # 16GB
        return told | ({"pattern": f"^({self.pattern})$"} if self.pattern else {})

    def _json_of_kinds(self) -> dict[str, Any]:
        one = {"type": "object", "properties": {"name": {"enum": list(self.names)}}}
        return {"type": "array", "items": one} if self.example.startswith("[") else one


class SettingsError(ValueError):
    """Several problems of one setting of a job file; pydantic passes it on.

    Each line continues the path of the setting: ``.key: problem``, or ``: problem`` of the setting itself.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


class Settings(metaclass=Keywords):
    """Base of settings: a dataclass of annotated fields that refuses what these do not allow.

    Raises
    ------
    ConfigurationError
        If a value is of another type or out of range, or values do not go together; one line a problem.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid", "strict": True}
    AT: ClassVar[str] = "{kind}."
    """Prefix of a field in messages; ``{kind}`` is the class in it, ``{name}`` the object's name."""

    def __post_init__(self) -> None:
        known = settings_of(cast("Any", type(self)))
        for name, (_, setting) in known.items():
            if setting and setting.none is not None and getattr(self, name) is None:
                object.__setattr__(self, name, setting.none)
        problems = list(self._field_problems())
        chosen = {name for name, (_, one) in known.items() if one and one.choices}
        texts = {name for name in chosen if isinstance(getattr(self, name), str)}
        if all(line.partition(":")[0] in texts for line in problems):
            plain_fields(self)
            problems += self._problems()
        if problems:
            at = _at(type(self), getattr(self, "name", None))
            raise ConfigurationError(*(f"{at}{line}" for line in problems))

    def _field_problems(self) -> Iterator[str]:
        """Yield a line for each field that its annotation does not allow; it begins with the field."""
        for name, (hint, setting) in settings_of(cast("Any", type(self))).items():
            problem = setting.problem if setting else kind_problem
            if line := problem(name, getattr(self, name), hint):
                yield line

    def _problems(self) -> Iterable[str]:
        """Return problems of values that do not go together, one line each, which may begin with a field.

        Each value is valid by itself, but a text may be none of its choices.
        """
        return ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let a job file give a mapping; values that do not go together are told with all other problems."""
        schema = handler(source)
        handler.resolve_ref_schema(schema)["strict"] = False  # of the object, not of its fields
        function = {"type": "no-info", "function": cls._read}
        return {"type": "function-wrap", "function": function, "schema": schema}

    @classmethod
    def _read(cls, value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ConfigurationError as error:
            name = value.get("name") if isinstance(value, dict) else None
            raise SettingsError(_continued("", cls, error.problems, name)) from error


def short_repr(holder: Any) -> str:
    """Return the constructor's call that makes a settings object, without arguments that are defaults."""
    told = [
        f"{one.name}={list(value) if isinstance(value, tuple) else value!r}"
        for one in fields(holder)
        if (value := getattr(holder, one.name)) != one.default or one.default is MISSING
    ]
    return f"{type(holder).__name__}({', '.join(told)})"


def setting_of(hint: Any) -> Setting | None:
    """Return the Setting of an annotation; None if it has none."""
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Setting)), None)


@lru_cache(maxsize=256)
def settings_of(kind: Any) -> Mapping[str, tuple[Any, Setting | None]]:
    """Return type and Setting of each field of a settings class, in order."""
    hints, plain = hints_of(kind, True), hints_of(kind)
    return {one.name: (plain[one.name], setting_of(hints[one.name])) for one in fields(kind)}


def settings_as_keywords(
    kind: Callable[Given, KindT],
) -> Callable[
    [Callable[[SelfT, FirstT, SecondT, KindT], None]],
    Callable[Concatenate[SelfT, FirstT, SecondT, Given], None],
]:
    """Let a constructor take the fields of a settings class as keywords, in place of its last argument.

    Its signature, its help and what a type checker accepts are made of the class.

    Parameters
    ----------
    kind : type
        A dataclass of keywords, derived from `Settings`.

    Raises
    ------
    TypeError
        From the constructor, if the class has no such field.
    """

    def around(
        init: Callable[[SelfT, FirstT, SecondT, KindT], None],
    ) -> Callable[Concatenate[SelfT, FirstT, SecondT, Given], None]:
        positional = list(inspect.signature(init).parameters.values())[:-1]
        signature = inspect.Signature([*positional, *keywords_of(kind).values()])

        @wraps(init)
        def call(*given: Any, **keywords: Any) -> None:
            name = type(given[0]).__name__
            unknown = [one for one in keywords if one not in signature.parameters]
            refuse_unknown(name, unknown, list(keywords_of(kind)))
            try:
                bound = signature.bind(*given, **keywords)
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
            init(*bound.args, kind(**bound.kwargs))  # type: ignore[call-arg]

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = f"{inspect.cleandoc(init.__doc__ or '')}\n\n{fields_help(kind)}"
        return cast("Any", call)

    return around


def keywords_of(kind: Any) -> dict[str, inspect.Parameter]:
    """Return the fields of a settings class as parameters of a function."""
    found = {}
    for one in fields(kind):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        hint, _setting = settings_of(kind)[one.name]
        found[one.name] = inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is MISSING else default,
            annotation=hint,
        )
    return found


def fields_help(kind: Any) -> str:
    """Return the section "Parameters" of a docstring, as the annotations of a settings class have it."""
    lines = ["Parameters", "----------"]
    for name, (hint, setting) in settings_of(kind).items():
        lines.append(f"{name} : {inspect.formatannotation(hint)}")
        if setting is not None:
            bounds = " ".join(filter(None, (setting.bounds, setting.unit)))
            told = f"{setting.help} ({bounds})" if bounds else setting.help
            lines += textwrap.wrap(told, 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def read_named(at: str, plain: object, kinds: Mapping[str, type[KindT]], example: str = "") -> KindT:
    """Make the settings that a mapping names, ``{name: Cosine, batches: 20000}``.

    Parameters
    ----------
    at : str
        Path of the mapping, with which each message begins.
    plain : object
        A mapping of ``name``, which may be left out where there is one kind, and of fields.
    kinds : mapping of name to type
        Settings classes.
    example : str
        A right mapping, for a message.

    Raises
    ------
    ConfigurationError
        If it is no mapping, a name is unknown or missing, or a value is invalid; all problems at once.
    """
    if not isinstance(plain, Mapping):
        such = f"for example {example}" if example else f"with a name, one of {', '.join(kinds)}"
        near = nearest(plain, kinds) if isinstance(plain, str) else None
        hint = f"; did you mean {{name: {near}}}?" if near else ""
        raise ConfigurationError(f"{at}: expected a mapping, {such}, got {came(plain)}{hint}")
    given = dict(plain)
    name = given.pop("name", next(iter(kinds)) if len(kinds) == 1 else None)
    if name is None:
        raise ConfigurationError(f"{at}.name: is missing; one of {', '.join(kinds)}")
    if not isinstance(name, str) or name not in kinds:
        raise ConfigurationError(unknown_value(f"{at}.name", name, kinds))
    kind = kinds[name]
    known = settings_of(cast("Any", kind))
    problems = [unknown_key(f"{at}.{key}", known) for key in given if key not in known]
    needed = [one.name for one in fields(cast("Any", kind)) if one.default is MISSING]
    takes = f"is missing; it takes {', '.join(known)}"
    if missing := [f"{at}.{key}: {takes}" for key in needed if key not in given]:
        raise ConfigurationError(*problems, *missing)
    try:
        made = kind(**{key: value for key, value in given.items() if key in known})
    except ConfigurationError as error:
        problems += _continued(at, kind, error.problems)
    if problems:
        raise ConfigurationError(*problems)
    return made


def _continued(at: str, kind: Any, problems: Iterable[str], name: object = None) -> Iterator[str]:
    """Yield problems of an object as those of its path: of a key that they begin with, or of the object."""
    known = settings_of(kind)
    for problem in problems:
        line = problem.removeprefix(_at(kind, name))
        key = re.match(r"(\w+)(, \w+)*[.:]", line)
        yield f"{at}.{line}" if key and key[1] in known else f"{at}: {line}"


def _calling(function: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a function of one value as pydantic's core takes it."""
    return {"type": "no-info", "function": function}


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is tuple


def _at(kind: Any, name: object = None) -> str:
    short = isinstance(name, str) and len(name) < TOLD_MAX and name.isprintable()
    told = kind.AT.format(kind=kind.__name__, name=name if short else came(name))
    return str(told)


def _shown(bound: float | None) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _bytes_of(value: object) -> object:
    """Return the bytes of a text with a unit (16GB, 1.5 GiB); any other value unchanged."""
    if not isinstance(value, str):
        return value
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(value))
    except ValidationError as error:
        raise ValueError(f"expected a whole number of bytes or a text like 16GB, got {value!r}") from error
