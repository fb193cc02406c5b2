"""Rules of custom resources in the Common Expression Language (``x-kubernetes-validations``).

The language is a library's (``cel-expr-python``, the C++ implementation). Here are Kubernetes' own functions for lists
and regular expressions, and the conversion of values. What it does not know (quantities, URLs, IP addresses, the order
of times) fails to compile, and the definition that uses it is refused.
"""

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from controllers.api.quantity import parse_quantity
from controllers.sandbox.typeschema import MISSING, Rule, TypeSchema

try:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_encoders, ext_optional, ext_strings
except ImportError:
    # The library has no build for Linux on ARM. All but rules works without it.
    cel = None

AVAILABLE: Final = cel is not None
"""Whether anything can be evaluated."""

STRINGS_VERSION: Final = 2
"""Version of the string functions that Kubernetes has."""


class RuleError(Exception):
    """A rule that cannot be compiled; the message is the compiler's."""


class Program:
    """A compiled rule."""

    def __init__(self, rule: Rule, schema: TypeSchema) -> None:
        """Raises RuleError."""
        if cel is None:
            raise RuleError("rules cannot be compiled: the package cel-expr-python is not installed on this machine")
        self._rule = rule
        self._schema = schema
        code = _without_literals(rule.rule)
        self.about_change = re.search(r"\boldSelf\b", code) is not None
        """Whether the rule compares with the value before, and so is not asked where there is none."""
        _check_fields(rule.rule, schema)
        environment = _environment(schema, rule.optional_old_self)
        self._expression = _compile(environment, rule.rule, "BOOL")
        self._message = _compile(environment, rule.message_expression, "STRING") if rule.message_expression else None

    def verdict(self, new: Any, old: Any) -> str | None:
        """Why a value breaks the rule, ``None`` where it does not. ``old`` is MISSING on a create."""
        if self.about_change and old is MISSING and not self._rule.optional_old_self:
            return None
        data = {"self": native(new, self._schema)}
        if old is not MISSING:
            data["oldSelf"] = native(old, self._schema)
        elif self.about_change:
            data["oldSelf"] = None
        answer = self._expression.eval(data=data)
        if answer.type() == cel.Type.ERROR:
            return f"{_reason(answer.value())} evaluating rule: {self._rule.message or self._rule.rule}"
        return None if answer.value() is True else self._why(data)

    def _why(self, data: Mapping[str, Any]) -> str:
        if self._message is not None:
            text = self._message.eval(data=data)
            if text.type() == cel.Type.STRING and str(text.value()).strip() and "\n" not in str(text.value()):
                return str(text.value())
        return self._rule.message.strip() or f"failed rule: {self._rule.rule.strip()}"


@functools.lru_cache(maxsize=4096)
def _cached(rule: Rule, schema: TypeSchema) -> Program:
    return Program(rule, schema)


def compiled(rule: Rule, schema: TypeSchema) -> Program:
    """The program of a rule on a node of a schema. Raises RuleError."""
    return _cached(rule, schema)


def _compile(environment: Any, source: str, wanted: str) -> Any:
    try:
        expression = environment.compile(source)
    except RuntimeError as error:
        text = str(error).removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]")
        raise RuleError(f"compilation failed: {text}") from None
    if expression.return_type().name() not in (wanted, "DYN"):
        what = "cel expression must evaluate to a bool" if wanted == "BOOL" else "must evaluate to a string"
        raise RuleError(what)
    return expression


def _reason(error: Any) -> str:
    text = str(error)
    if missing := re.search(r'Key not found in map : "(.*)"', text):
        return f"no such key: {missing[1]}"
    return text


class Condition:
    """A condition on one value of any shape, such as the selector of a device class.

    Besides what rules know it has quantities and semantic versions, as far as they are compared: in the value the
    former are numbers with a fraction, the latter text.
    """

    def __init__(self, source: str, variable: str) -> None:
        """``variable`` is the value's name in the condition. Raises RuleError."""
        if cel is None:
            raise RuleError("it cannot be evaluated: the package cel-expr-python is not installed on this machine")
        self._variable = variable
        functions = [*_functions(), *_comparisons()]
        environment = cel.NewEnv(variables={variable: cel.Type.DYN}, extensions=_extensions(), functions=functions)
        self._expression = _compile(environment, source, "BOOL")

    def holds(self, value: Any) -> bool:
        """Whether the condition is true of a value. Raises RuleError where it fails, say for an absent member."""
        answer = self._expression.eval(data={self._variable: value})
        if answer.type() == cel.Type.ERROR:
            raise RuleError(f"CEL runtime error: {_reason(answer.value())}")
        return answer.value() is True


# --- fields that a rule names

_LITERAL: Final = re.compile(r"""r?("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_CHAIN: Final = re.compile(r"\b(?:self|oldSelf)((?:\.[A-Za-z_]\w*)+)(\()?")


def _without_literals(source: str) -> str:
    return _LITERAL.sub(lambda found: "'" + " " * (len(found[0]) - 2) + "'", source)


_ORDERED: Final = re.compile(r"[<>]|\b(?:timestamp|duration|bytes)\(|\.get[A-Z]")
_OPAQUE: Final = frozenset({"byte", "date", "date-time", "duration"})
"""Formats whose values are more than text to the server, and cannot be given to the library as such."""


def _refuse_order(code: str, node: TypeSchema) -> None:
    if node.limits.format in _OPAQUE and _ORDERED.search(code):
        raise RuleError(f"the sandbox compares values of the format {node.limits.format} only for equality")


def _undefined(name: str, source: str, place: int) -> str:
    where = f"ERROR: <input>:1:{place + 1}: undefined field '{name}'"
    return f"compilation failed: {where}\n | {source}\n | {'.' * place}^"


def _check_fields(source: str, schema: TypeSchema) -> None:
    """Refuse a rule that names a member which its type does not have: the library, unlike the server, would not."""
    code = _without_literals(source)
    _refuse_order(code, schema)
    for found in _CHAIN.finditer(code):
        names = found[1].split(".")[1:]
        node = schema
        for name in names[:-1] if found[2] else names:
            known = {escape(member): below for member, below in node.properties.items()}
            if node.type != "object" or node.values is not None or node.preserve_unknown:
                break
            if name not in known:
                raise RuleError(_undefined(name, source, found.start(1)))
            node = known[name]
        _refuse_order(code, node)


# --- values and types

_RESERVED: Final = frozenset(
    (
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if"),
        *("import", "let", "loop", "package", "namespace", "return"),
    )
)


def escape(name: str) -> str:
    """A member's name as rules write it."""
    if name in _RESERVED:
        return f"__{name}__"
    for plain, escaped in (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")):
        name = name.replace(plain, escaped)
    return name


def native(value: Any, schema: TypeSchema) -> Any:
    """A JSON value as the language sees it: member names escaped, nulls absent, numbers of the declared type."""
    if isinstance(value, dict):
        declared = schema.properties
        return {
            escape(name) if name in declared else name: native(member, schema.field(name))
            for name, member in value.items()
            if member is not None
        }
    if isinstance(value, list):
        return [native(item, schema.element()) for item in value]
    return float(value) if schema.type == "number" and isinstance(value, int) else value


_SCALARS: Final = {
    "string": "STRING",
    "integer": "INT",
    "number": "DOUBLE",
    "boolean": "BOOL",
}


def _type(schema: TypeSchema) -> Any:
    if schema.type == "array":
        return cel.Type.List(_type(schema.element()))
    if schema.type == "object":
        return cel.Type.Map(cel.Type.STRING, _type(schema.values) if schema.values else cel.Type.DYN)
    return getattr(cel.Type, _SCALARS.get(schema.type, "DYN"))


def _environment(schema: TypeSchema, optional_old_self: bool) -> Any:
    own = _type(schema)
    variables = {"self": own, "oldSelf": cel.Type.DYN if optional_old_self else own}
    return cel.NewEnv(variables=variables, extensions=_extensions(), functions=_functions())


# --- functions that Kubernetes adds


def _extensions() -> list[Any]:
    return [
        ext_strings.ExtStrings(STRINGS_VERSION),
        ext_optional.ExtOptional(),
        ext_encoders.ExtEncoders(),
        ext_bindings.ExtBindings(),
    ]


def _member(name: str, parameters: Sequence[Any], result: Any, body: Callable[..., Any]) -> Any:
    overload = cel.Overload(f"kubernetes_{name}", return_type=result, parameters=parameters, is_member=True, impl=body)
    return cel.FunctionDecl(name, [overload])


def _is_sorted(items: list[Any]) -> bool:
    return all(left <= right for left, right in itertools.pairwise(items))


def _find(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found[0] if found else ""


def _find_all(text: str, pattern: str) -> list[str]:
    return [found[0] for found in re.finditer(pattern, text)]


def _functions() -> list[Any]:
    anything, text = cel.Type.DYN, cel.Type.STRING
    items = cel.Type.List(anything)
    return [
        _member("isSorted", [items], cel.Type.BOOL, _is_sorted),
        _member("sum", [items], anything, lambda values: sum(values)),
        _member("min", [items], anything, lambda values: min(values)),
        _member("max", [items], anything, lambda values: max(values)),
        _member("find", [text, text], text, _find),
        _member("findAll", [text, text], cel.Type.List(text), _find_all),
    ]


_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


def _version(text: str) -> tuple[Any, ...]:
    """A semantic version as something that sorts. Raises ValueError."""
    found = _VERSION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a semantic version")
    marks = (found[4] or "").split(".")
    before_release = [(0, int(mark), "") if mark.isdigit() else (1, 0, mark) for mark in marks if mark]
    return (*(int(number) for number in found.group(1, 2, 3)), not before_release, before_release)


def _checked_version(text: str) -> str:
    _version(text)
    return text


def _compare(left: Any, right: Any) -> int:
    if isinstance(left, str):
        left, right = _version(left), _version(right)
    return int(left > right) - int(left < right)


def _function(name: str, result: Any, body: Callable[..., Any]) -> Any:
    overload = cel.Overload(
        f"kubernetes_{name}", return_type=result, parameters=[cel.Type.STRING], is_member=False, impl=body
    )
    return cel.FunctionDecl(name, [overload])


def _comparison(name: str, result: Any, body: Callable[[Any, Any], Any]) -> Any:
    # The library does not find an overload for values of any type, so there is one for each kind of value.
    overloads = [
        cel.Overload(
            f"kubernetes_{name}_{kind}", return_type=result, parameters=[kind, kind], is_member=True, impl=body
        )
        for kind in (cel.Type.DOUBLE, cel.Type.STRING)
    ]
    return cel.FunctionDecl(name, overloads)


def _comparisons() -> list[Any]:
    return [
        _function("quantity", cel.Type.DOUBLE, lambda text: float(parse_quantity(text))),
        _function("semver", cel.Type.STRING, _checked_version),
        _comparison("compareTo", cel.Type.INT, _compare),
        _comparison("isGreaterThan", cel.Type.BOOL, lambda left, right: _compare(left, right) > 0),
        _comparison("isLessThan", cel.Type.BOOL, lambda left, right: _compare(left, right) < 0),
    ]
