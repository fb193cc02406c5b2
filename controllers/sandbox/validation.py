"""Defaulting, pruning and validation of custom resources by their structural schema.

The texts are the real server's. On an update what did not change is not judged again, so that an object that was stored
under an older schema can still be written.
"""

import base64
import binascii
import ipaddress
import json
import re
import uuid
from collections.abc import Iterable, Iterator
from copy import deepcopy
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypeAlias

from controllers.api.quantity import canonical_quantity
from controllers.sandbox import presets
from controllers.sandbox.cel import Program, compiled
from controllers.sandbox.errors import Cause
from controllers.sandbox.merge import KeyMissing, element_of
from controllers.sandbox.typeschema import ANY, MICRO_TIME, MISSING, Limits, Rule, TypeSchema

Object: TypeAlias = dict[str, Any]

UNCHECKED: Final = Cause(
    "FieldValueInvalid",
    "Invalid value: null: some validation rules were not checked because the object was invalid;"
    " correct the existing errors to complete validation",
    "<nil>",
)
BLOCKING: Final = frozenset(
    f"FieldValue{kind}" for kind in ("Required", "TooLong", "TooMany", "TypeInvalid", "NotSupported")
)
"""Faults after which rules are not asked: an object that has one may not be what they expect."""

NO_OBJECT: Final = TypeSchema(type="string")
"""What declares no members, for values that stand where none is expected."""
OBJECT_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
ENVELOPE: Final = frozenset({"apiVersion", "kind", "metadata"})


# --- defaulting and pruning


def default(value: Any, schema: TypeSchema) -> Any:
    """Fill in defaults, in place, and return the value. A null that may not be null counts as absent.

    Of built-in kinds and of all metadata empty lists and maps that may be left out go, too: they do in typed form.
    """
    tidy(value, schema)
    return fill(value, schema)


def tidy(value: Any, schema: TypeSchema) -> None:
    """Bring an object of a built-in kind into typed form, in place: what says nothing goes."""
    if schema.builtin:
        _drop_empty(value, schema)


def fill(value: Any, schema: TypeSchema) -> Any:
    """Fill in defaults, in place, where the types are right already, and return the value."""
    if isinstance(value, dict):
        _default_members(value, schema)
    elif isinstance(value, list):
        for item in value:
            fill(item, schema.element())
    return value


def _drop_empty(value: Any, schema: TypeSchema) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            if item is None:
                value[index] = _zero(schema.element())
            _drop_empty(item, schema.element())
    elif isinstance(value, dict):
        _drop_empty_members(value, schema)


def _drop_empty_members(value: Object, schema: TypeSchema) -> None:
    unwanted = []
    for name, held in value.items():
        if isinstance(held, dict | list):
            if name == "managedFields":
                continue  # An empty list of these is a request to forget them.
            _drop_empty(held, schema.field(name))
        elif held is not None and name not in schema.dropped:
            if _is_quantity(schema, name):
                value[name] = _canonical(held)
            continue
        always = name in schema.written and held is not None
        if name in schema.properties and not always and _is_nothing(name, held, schema):
            unwanted.append(name)
        elif schema.values is not None and held is None:
            value[name] = "0" if schema.values.name == QUANTITY else _zero(schema.values)
        elif isinstance(held, list) and schema.field(name).limits.format == "byte":
            value[name] = _from_numbers(held)
    for name in unwanted:
        del value[name]


def _is_quantity(schema: TypeSchema, name: str) -> bool:
    member = schema.properties.get(name) or schema.values
    return member is not None and member.name == QUANTITY


def _canonical(held: Any) -> Any:
    """A quantity as it is stored; what is none stays as it is."""
    try:
        return canonical_quantity(held) if isinstance(held, str | int | float) and held is not True else held
    except ValueError:
        return held


def _from_numbers(items: list[Any]) -> Any:
    """Bytes that are written as a list of numbers, which the real server reads, too, as their base64."""
    numbers = [0 if item is None else item for item in items]
    if not all(type(number) is int and 0 <= number < 256 for number in numbers):
        return items
    return base64.b64encode(bytes(numbers)).decode()


def _is_nothing(name: str, held: Any, schema: TypeSchema) -> bool:
    """Whether a member is as good as absent in typed form."""
    member = schema.field(name)
    if held is None or (held == [] and member.type == "array"):
        return True
    if held == {}:
        return member.values is not None
    return name in schema.dropped and held in ("", 0) and not isinstance(held, float)


def emptied(value: Any, schema: TypeSchema) -> Any:
    """The value as it comes back from the store, which does not tell an empty list or map from none."""
    if not value or not _has_empty(schema):
        return value
    if isinstance(value, list):
        return [emptied(item, schema.element()) for item in value]
    if not isinstance(value, dict):
        return value
    result = {
        name: emptied(held, schema.field(name)) if isinstance(held, dict | list) else held
        for name, held in value.items()
    }
    for name, nothing in schema.written.items():
        if nothing is None and result.get(name) in ([], {}):
            result[name] = None
    return result


@lru_cache(maxsize=4096)
def _has_empty(schema: TypeSchema) -> bool:
    """Whether anything in values of a schema is always written, and may be null."""
    return any(nothing is None for part in _parts(schema) for nothing in part.written.values())


def _zero(schema: TypeSchema) -> Any:
    """What null is read as where typed values stand."""
    return {"string": "", "integer": 0, "number": 0, "boolean": False, "object": {}}.get(schema.type)


def _default_members(value: Object, schema: TypeSchema) -> None:
    if schema.name == OBJECT_META:
        _drop_empty(value, schema)
    if schema.name:
        presets.fill(value, schema.name)
    for name, nothing in schema.written.items():
        if value.get(name) is None and name in schema.properties:
            value[name] = deepcopy(nothing)
    for name in [name for name, held in value.items() if held is None]:
        if name in schema.properties and name not in schema.written and not schema.properties[name].nullable:
            del value[name]
    for name, preset in _defaults(schema):
        if name not in value:
            value[name] = deepcopy(preset)
    for name, held in value.items():
        if isinstance(held, dict | list):
            fill(held, schema.field(name))


@lru_cache(maxsize=4096)
def _defaults(schema: TypeSchema) -> tuple[tuple[str, Any], ...]:
    """The members of an object that have a default, which are few of many."""
    return tuple(
        (name, member.default)
        for name, member in schema.properties.items()
        if member.default is not MISSING and name not in schema.written
    )


def prune(value: Any, schema: TypeSchema) -> list[str]:
    """Take out what the schema does not declare, in place, and return its sorted paths, as ``spec.list[0].field``."""
    return [] if _declared(value, schema) else sorted(_prune(value, schema, ""))


def _declared(value: Any, schema: TypeSchema) -> bool:
    """Whether there is nothing to take out, which is quicker to say than what."""
    if isinstance(value, list):
        items = schema.element() if schema.type in ("array", "") else NO_OBJECT
        return all(_declared(item, items) for item in value)
    if not isinstance(value, dict):
        return True
    if not _has_members(schema):
        return not value
    for name, held in value.items():
        member = schema.properties.get(name) or schema.values
        if member is None and not schema.declares(name):
            return False
        if isinstance(held, dict | list) and not _declared(held, member or ANY):
            return False
    return True


def _has_members(schema: TypeSchema) -> bool:
    return schema.type in ("object", "") and not schema.int_or_string


def _prune(value: Any, schema: TypeSchema, path: str) -> Iterator[str]:
    if isinstance(value, list):
        items = schema.element() if schema.type in ("array", "") else NO_OBJECT
        for index, item in enumerate(value):
            yield from _prune(item, items, f"{path}[{index}]")
    if not isinstance(value, dict):
        return
    for name in list(value):
        at = f"{path}.{name}" if path else name
        if schema.declares(name) and _has_members(schema):
            yield from _prune(value[name], schema.field(name), at)
        else:
            del value[name]
            yield at


# --- validation


def validate(
    new: Object, old: Object | None, schema: TypeSchema, subresource: str = "", known: Iterable[Cause] = ()
) -> list[Cause]:
    """Every rule of the schema that an object breaks, after what is ``known`` to be wrong with it.

    ``old`` is what an update, or one of the status, replaces.
    """
    before = MISSING if old is None else old
    causes = list(known)
    if not _sound_object(new, schema):
        found = list(_check(new, before, schema, ""))
        if subresource == "status":
            found = [_within_status(cause) for cause in found]
        causes += [*found, *_duplicates(new, before, schema, "")]
    if schema.builtin:
        return causes
    if not _ruled(schema):
        return causes
    if any(cause.reason in BLOCKING for cause in causes):
        return [*causes, UNCHECKED]
    return [*causes, *_rules(new, before, schema, "")]


def _within_status(cause: Cause) -> Cause:
    """What is wrong with a status in the words for a write of it alone, where paths begin inside it."""
    inside = cause.field.removeprefix("status").removeprefix(".")
    message = re.sub(rf"\b{re.escape(cause.field)} (?=in body|must be)", f"{inside} ", cause.message)
    return Cause(cause.reason, message, cause.field)


def _sound_object(new: Any, schema: TypeSchema) -> bool:
    """Whether an object certainly breaks no rule but those in CEL; where it does not know, it is not.

    Nearly all objects are sound, and it takes a fraction of the time that it takes to find out what is wrong with one.
    """
    if not isinstance(new, dict) or not _simple(schema) or not _complete(new, schema):
        return False
    # Metadata has rules of its own.
    return all(name == "metadata" or _sound(value, schema.field(name)) for name, value in new.items())


def _complete(value: Object, schema: TypeSchema) -> bool:
    return all(value.get(name) is not None for name in _required(schema))


@lru_cache(maxsize=4096)
def _required(schema: TypeSchema) -> tuple[str, ...]:
    return (*schema.limits.required, *presets.REQUIRED.get(schema.name, ()))


def _sound(value: Any, schema: TypeSchema) -> bool:
    if type(value) is _plain(schema) and (type(value) is not int or -(2**31) <= value < 2**31):
        return True
    if value is None:
        return schema.nullable or not schema.type or schema.default is not MISSING
    if not _simple(schema) or _type_fault(value, schema, "") is not None:
        return False
    if isinstance(value, dict):
        members, others = schema.properties, schema.values or ANY
        return _complete(value, schema) and all(
            _sound(held, members.get(name) or others) for name, held in value.items()
        )
    if isinstance(value, list):
        items = schema.element()
        return _evidently_unique(value, schema) and all(_sound(item, items) for item in value)
    return next(_limit_faults(value, schema.limits, ""), None) is None


def _evidently_unique(items: list[Any], schema: TypeSchema) -> bool:
    if schema.list_kind == "atomic" or len(items) < 2:
        return True
    keys = schema.map_keys if schema.list_kind == "map" else ()
    names = [[item.get(key) for key in keys] if isinstance(item, dict) else [item] for item in items]
    # Other values than texts may be equal in Python and different in JSON.
    texts = {tuple(name) for name in names if all(isinstance(part, str) for part in name)}
    return len(texts) == len(items)


@lru_cache(maxsize=4096)
def _plain(schema: TypeSchema) -> type | None:
    """The Python type whose every value, of 32 bits, is sound; None where there are limits, or several types."""
    scalars = {"string": str, "boolean": bool, "integer": int}
    unlimited = schema.limits == Limits(format=schema.limits.format) and schema.limits.format not in _FORMATS
    return scalars.get(schema.type) if unlimited and not schema.int_or_string else None


@lru_cache(maxsize=4096)
def _simple(schema: TypeSchema) -> bool:
    """Whether a value's own limits, and those of what is in it, are all that there is to look at."""
    limits = schema.limits
    counted = (limits.min_items, limits.max_items, limits.min_properties, limits.max_properties)
    combined = limits.any_of or limits.all_of or limits.one_of or limits.not_
    chosen = limits.enum is not None and schema.type in {"object", "array", ""}
    return not combined and not chosen and all(count is None for count in counted)


@lru_cache(maxsize=4096)
def _ruled(schema: TypeSchema) -> bool:
    """Whether there is any rule in CEL for what is in values of a schema."""
    return any(part.limits.rules for part in _parts(schema))


def _parts(schema: TypeSchema) -> Iterator[TypeSchema]:
    """A schema and all below it, each one once."""
    met, left = set[int](), [schema]
    while left:
        each = left.pop()
        if id(each) not in met:
            met.add(id(each))
            yield each
            left += [part for part in (*each.properties.values(), each.values, each.items) if part is not None]


def _check(new: Any, old: Any, schema: TypeSchema, path: str) -> Iterator[Cause]:
    if old is not MISSING and new == old:
        return
    if (fault := _type_fault(new, schema, path)) is not None:
        if schema.type == "integer" and isinstance(new, float):
            why = f'Invalid value: "": Checked value must be of type integer (default format) in {path}'
            yield Cause("FieldValueInvalid", why, "<nil>")
        yield fault
        if new is not None:
            yield from _enum_faults(new, schema.limits, path)
        return
    if new is None:
        return
    if isinstance(new, dict):
        yield from _check_members(new, old, schema, path)
    elif isinstance(new, list):
        yield from _check_items(new, old, schema, path)
    yield from _limit_faults(new, schema.limits, path)
    yield from _combined(new, schema.limits, path)


def _check_members(new: Object, old: Any, schema: TypeSchema, path: str) -> Iterator[Cause]:
    for name in _required(schema):
        if name not in new or (new[name] is None and name in schema.written):
            yield Cause("FieldValueRequired", "Required value", _join(path, name))
    for name, value in new.items():
        # Metadata has rules of its own, and no schema may say more of it than its name.
        if (not path and name == "metadata") or (value is None and name in schema.written):
            continue
        yield from _check(value, _member(old, name), schema.field(name), _join(path, name))


def _check_items(new: list[Any], old: Any, schema: TypeSchema, path: str) -> Iterator[Cause]:
    for index, item in enumerate(new):
        yield from _check(item, _counterpart(item, old, schema), schema.element(), f"{path}[{index}]")


def _member(old: Any, name: str) -> Any:
    return old.get(name, MISSING) if isinstance(old, dict) else MISSING


def _counterpart(item: Any, old: Any, schema: TypeSchema) -> Any:
    """What an item of a list was before; only keyed lists can tell."""
    if schema.list_kind != "map" or not isinstance(old, list):
        return MISSING
    try:
        wanted = element_of(item, schema)
        return next((held for held in old if element_of(held, schema) == wanted), MISSING)
    except KeyMissing:
        return MISSING


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_JSON_TYPES: Final = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def _type_fault(value: Any, schema: TypeSchema, path: str) -> Cause | None:
    if value is None:
        if schema.nullable or not schema.type or schema.default is not MISSING:
            return None
        return _wrong_type(schema.type, "null", path)
    if schema.name == QUANTITY:
        return None if _is_amount(value) else Cause("FieldValueTypeInvalid", _NO_QUANTITY)
    actual = _JSON_TYPES[type(value)]
    limit = 2**31 if schema.limits.format == "int32" else 2**63
    if schema.type == "integer" and actual in {"integer", "number"} and not -limit <= value < limit:
        return _wrong_type(schema.type, "number", path)
    if schema.int_or_string:
        return None if actual in ("integer", "string") else _wrong_type("integer,string", actual, path)
    if not schema.type or actual == schema.type or (schema.type == "number" and actual == "integer"):
        return None
    if schema.type == "integer" and actual == "number" and float(value).is_integer():
        return None
    return _wrong_type(schema.type, actual, path)


_NO_QUANTITY: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def _is_amount(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(canonical_quantity(value))
    except ValueError:
        return False


def _wrong_type(wanted: str, actual: str, path: str) -> Cause:
    message = f'Invalid value: "{actual}": {path} in body must be of type {wanted}: "{actual}"'
    return Cause("FieldValueTypeInvalid", message, path)


def _limit_faults(value: Any, limits: Limits, path: str) -> Iterator[Cause]:
    yield from _enum_faults(value, limits, path)
    if isinstance(value, str):
        yield from _text_faults(value, limits, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_faults(value, limits, path)
    elif isinstance(value, list):
        yield from _count_faults(len(value), limits.min_items, limits.max_items, "items", path)
    elif isinstance(value, dict):
        yield from _count_faults(len(value), limits.min_properties, limits.max_properties, "properties", path)


def _enum_faults(value: Any, limits: Limits, path: str) -> Iterator[Cause]:
    if limits.enum is not None and value not in limits.enum:
        supported = ", ".join(_quoted(choice) for choice in limits.enum)
        why = f"Unsupported value: {_quoted(value)}: supported values: {supported}"
        yield Cause("FieldValueNotSupported", why, path)


def _invalid(value: Any, why: str, path: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {_quoted(value)}: {path} in body {why}", path)


def _text_faults(value: str, limits: Limits, path: str) -> Iterator[Cause]:
    if limits.max_length is not None and len(value) > limits.max_length:
        yield Cause("FieldValueTooLong", f"Too long: may not be more than {limits.max_length} bytes", path)
    if limits.min_length is not None and len(value) < limits.min_length:
        yield _invalid(value, f"should be at least {limits.min_length} chars long", path)
    if limits.pattern is not None and not re.search(limits.pattern, value):
        yield _invalid(value, f"should match '{limits.pattern}'", path)
    if limits.format in _FORMATS and not _fits(limits.format, value):
        why = f"{path} in body must be of type {limits.format}: {_quoted(value)}"
        yield Cause("FieldValueTypeInvalid", f"Invalid value: {_quoted(value)}: {why}", path)


def _number_faults(value: float, limits: Limits, path: str) -> Iterator[Cause]:
    if limits.maximum is not None:
        if limits.exclusive_maximum and value >= limits.maximum:
            yield _invalid(value, f"should be less than {limits.maximum:g}", path)
        elif value > limits.maximum:
            yield _invalid(value, f"should be less than or equal to {_number(limits.maximum)}", path)
    if limits.minimum is not None:
        if limits.exclusive_minimum and value <= limits.minimum:
            yield _invalid(value, f"should be greater than {limits.minimum:g}", path)
        elif value < limits.minimum:
            yield _invalid(value, f"should be greater than or equal to {_number(limits.minimum)}", path)
    if limits.multiple_of is not None:
        yield from _multiple_faults(value, limits.multiple_of, path)


def _multiple_faults(value: float, factor: float, path: str) -> Iterator[Cause]:
    # The real server cuts off the fraction of the factor where the value has none.
    factor = int(factor) if isinstance(value, int) else factor
    if factor <= 0:
        why = f"Invalid value: {factor}: factor MultipleOf declared for {path} must be positive: {factor}"
        yield Cause("FieldValueInvalid", why, path)
    elif value % factor != 0:
        yield _invalid(value, f"should be a multiple of {_number(factor)}", path)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _count_faults(count: int, least: int | None, most: int | None, noun: str, path: str) -> Iterator[Cause]:
    if most is not None and count > most:
        yield Cause("FieldValueTooMany", f"Too many: {count}: must have at most {most} items", path)
    if least is not None and count < least:
        yield _invalid(count, f"should have at least {least} {noun}", path)


def _combined(value: Any, limits: Limits, path: str) -> Iterator[Cause]:
    def passing(parts: tuple[TypeSchema, ...]) -> int:
        return sum(1 for part in parts if not any(_check(value, MISSING, part, path)))

    shown = '""' if isinstance(value, dict | list) else _quoted(value)
    prefix = f"Invalid value: {shown}: {path} in body"
    for part in limits.all_of:
        yield from _check(value, MISSING, part, path)
    if limits.any_of and not passing(limits.any_of):
        yield Cause(
            "FieldValueInvalid",
            f"{prefix.replace(shown, chr(34) * 2, 1)} must validate at least one schema (anyOf)",
            path,
        )
    if limits.one_of and passing(limits.one_of) != 1:
        why = f"must validate one and only one schema (oneOf). Found {passing(limits.one_of) or 'none'} valid"
        yield Cause("FieldValueInvalid", f"{prefix} {why}", path)
    if limits.not_ and passing((limits.not_,)):
        yield Cause("FieldValueInvalid", f"{prefix} must not validate the schema (not)", path)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- formats


def _fits(name: str, value: str) -> bool:
    try:
        _FORMATS[name](value)
    except (ValueError, binascii.Error):
        return False
    return True


def _date(value: str) -> None:
    datetime.strptime(value, "%Y-%m-%d")


_DATE_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})?$")


def _date_time(value: str) -> None:
    if not _DATE_TIME.match(value):
        raise ValueError(value)
    datetime.fromisoformat(value.upper())


_MICRO_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}(Z|[+-]\d{2}:\d{2})")


def _micro_time(value: str) -> None:
    """The times of leases and events have exactly six digits behind the point."""
    if not _MICRO_TIME.fullmatch(value):
        raise ValueError(value)
    datetime.fromisoformat(value)


_FORMATS: Final[dict[str, Any]] = {
    "byte": lambda value: base64.b64decode(value, validate=True),
    "date": _date,
    "date-time": _date_time,
    MICRO_TIME: _micro_time,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "cidr": ipaddress.ip_network,
    "uuid": uuid.UUID,
}


# --- lists that are sets or maps


def _duplicates(new: Any, old: Any, schema: TypeSchema, path: str) -> Iterator[Cause]:
    if old is not MISSING and new == old:
        return
    if isinstance(new, dict):
        for name, value in new.items():
            if not path and name == "metadata":
                continue
            yield from _duplicates(value, _member(old, name), schema.field(name), _join(path, name))
    if not isinstance(new, list):
        return
    if schema.list_kind != "atomic":
        yield from _repeated(new, schema, path)
    for index, item in enumerate(new):
        yield from _duplicates(item, _counterpart(item, old, schema), schema.element(), f"{path}[{index}]")


def _repeated(items: list[Any], schema: TypeSchema, path: str) -> Iterator[Cause]:
    seen = set()
    for index, item in enumerate(items):
        if schema.list_kind == "map" and not isinstance(item, dict):
            why = f"Invalid value: {_quoted(item)}: must be an object for an array of list-type map"
            yield Cause("FieldValueInvalid", why, f"{path}[{index}]")
            continue
        try:
            name = element_of(item, schema)
        except KeyMissing:
            continue
        if name in seen:
            yield Cause("FieldValueDuplicate", f"Duplicate value: {_shown_key(name)}", f"{path}[{index}]")
        seen.add(name)


def _shown_key(element: str) -> str:
    return _quoted(json.loads(element[2:]))


# --- rules in CEL


def _rules(new: Any, old: Any, schema: TypeSchema, path: str) -> Iterator[Cause]:
    if not _ruled(schema):
        return
    for rule in schema.limits.rules:
        program = compiled(rule, schema)
        # What did not change is judged only by rules about changes.
        if old is not MISSING and new == old and not program.about_change:
            continue
        yield from _rule_faults(program, rule, new, old, path)
    if isinstance(new, dict):
        for name, value in new.items():
            if path or name not in ENVELOPE:
                yield from _rules(value, _member(old, name), schema.field(name), _join(path, name))
    elif isinstance(new, list):
        for index, item in enumerate(new):
            yield from _rules(item, _counterpart(item, old, schema), schema.element(), f"{path}[{index}]")


def _rule_faults(program: Program, rule: Rule, new: Any, old: Any, path: str) -> Iterator[Cause]:
    why = program.verdict(new, old)
    if why is not None:
        yield Cause(rule.reason, _rule_text(rule, why, new), path + rule.field_path if path else rule.field_path[1:])


def _rule_text(rule: Rule, why: str, new: Any) -> str:
    if rule.reason == "FieldValueForbidden":
        return f"Forbidden: {why}"
    if rule.reason == "FieldValueRequired":
        return f"Required value: {why}"
    if rule.reason == "FieldValueDuplicate":
        return f"Duplicate value: {_quoted(new)}"
    return f"Invalid value: {why}" if isinstance(new, dict | list) else f"Invalid value: {_quoted(new)}: {why}"
