"""Writers of one top-level Python item each: a record class, a helper, a table, a parser.

Every writer takes a ``random.Random`` and the ``Record`` the surrounding text is about, and
returns an ``Item``: its source text, the name it defines and how a user would ask for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from . import vocabulary as vocab


@dataclass(frozen=True)
class Record:
    """An entity and the fields chosen for it; fields with defaults come last."""

    noun: str
    fields: tuple[str, ...]

    @property
    def class_name(self) -> str:
        return vocab.camel(self.noun)

    @property
    def plural(self) -> str:
        return vocab.plural(self.noun)

    def of_type(self, *types: str) -> list[str]:
        return [field for field in self.fields if vocab.annotation(field) in types]


@dataclass(frozen=True)
class Item:
    name: str
    source: str
    request: str


def draw_record(rng: Random) -> Record:
    noun = rng.choice(list(vocab.ENTITIES))
    own = vocab.ENTITIES[noun].split()
    fields = own[: rng.randint(2, len(own))]
    if rng.random() < 0.3:
        rng.shuffle(fields)
    if rng.random() < 0.35:
        extra = rng.choice(vocab.EXTRA_FIELDS)
        if extra not in fields:
            fields.append(extra)
    return Record(noun, tuple(fields[:7]))


def literal(rng: Random, field: str) -> str:
    """A Python literal that suits ``field``."""
    kind = vocab.annotation(field)
    if kind == "int":
        return str(rng.randint(1950, 2025) if field in ("year", "founded") else rng.randint(1, 99))
    if kind == "float":
        return f"{rng.randint(1, 99)}.{rng.choice('0255')}"
    if kind == "bool":
        return rng.choice(("True", "False"))
    if kind == "list[str]":
        return "[" + ", ".join(f'"{word}"' for word in rng.sample(vocab.THINGS, 2)) + "]"
    if field in ("author", "director", "artist", "customer", "owner", "teacher", "manager", "name"):
        return f'"{rng.choice(vocab.PEOPLE)}"'
    if field in ("city", "origin", "destination", "place", "country", "address", "capital"):
        return f'"{rng.choice(vocab.PLACES)}"'
    if field == "color":
        return f'"{rng.choice(vocab.COLORS)}"'
    if field == "status":
        return f'"{rng.choice(vocab.STATES)}"'
    return f'"{rng.choice(rng.choice((vocab.THINGS, vocab.KINDS)))}"'


def listed(words: tuple[str, ...] | list[str]) -> str:
    """``a, b and c``, with underscores read as blanks."""
    spoken = [word.replace("_", " ") for word in words]
    if len(spoken) == 1:
        return spoken[0]
    return ", ".join(spoken[:-1]) + " and " + spoken[-1]


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeio" else "a ") + noun


def dataclass_item(rng: Random, record: Record) -> Item:
    frozen = "(frozen=True)" if rng.random() < 0.3 else ""
    defaults = rng.randint(0, 2) if not record.of_type("list[str]") else 0
    lines = [f"@dataclass{frozen}", f"class {record.class_name}:"]
    lines += [f'    """{article(record.noun).capitalize()} with {listed(record.fields)}."""', ""]
    for number, field in enumerate(record.fields):
        default = ""
        if number >= len(record.fields) - defaults:
            default = " = " + literal(rng, field)
        lines.append(f"    {field}: {vocab.annotation(field)}{default}")
    if rng.random() < 0.5:
        lines += ["", *_describe_method(rng, record)]
    request = f"a {rng.choice(('record class', 'dataclass'))} for {article(record.noun)} with "
    return Item(record.class_name, "\n".join(lines), request + listed(record.fields))


def _describe_method(rng: Random, record: Record) -> list[str]:
    shown = rng.sample(record.fields, min(len(record.fields), rng.randint(1, 3)))
    name = rng.choice(("describe", "summary", "__str__", "label"))
    text = ", ".join(f"{{self.{field}}}" for field in shown)
    if rng.random() < 0.5:
        text = ", ".join(f"{field}={{self.{field}}}" for field in shown)
    return [f"    def {name}(self) -> str:", f'        return f"{text}"']


def plain_class_item(rng: Random, record: Record) -> Item:
    lines = [f"class {record.class_name}:"]
    lines.append(f'    """{rng.choice(("Represents", "Stores", "Holds"))} one {record.noun}."""')
    lines += ["", f"    def __init__(self, {', '.join(record.fields)}):"]
    lines += [f"        self.{field} = {field}" for field in record.fields]
    if rng.random() < 0.6:
        shown = ", ".join(f"{{self.{field}!r}}" for field in record.fields[:3])
        lines += ["", "    def __repr__(self):"]
        lines.append(f'        return f"{record.class_name}({shown})"')
    numbers = record.of_type("int", "float")
    if numbers and rng.random() < 0.5:
        field = rng.choice(numbers)
        lines += ["", "    def __lt__(self, other):"]
        lines.append(f"        return self.{field} < other.{field}")
    elif rng.random() < 0.5:
        lines += ["", "    def to_dict(self):", "        return {"]
        lines += [f'            "{field}": self.{field},' for field in record.fields]
        lines.append("        }")
    request = f"a class for {article(record.noun)} with {listed(record.fields)}"
    return Item(record.class_name, "\n".join(lines), request)


def named_tuple_item(rng: Random, record: Record) -> Item:
    lines = [f"class {record.class_name}(NamedTuple):"]
    lines += [f"    {field}: {vocab.annotation(field)}" for field in record.fields]
    request = f"a named tuple for {article(record.noun)} with {listed(record.fields)}"
    return Item(record.class_name, "\n".join(lines), request)


def enum_item(rng: Random, record: Record) -> Item:
    words = rng.sample(rng.choice((vocab.STATES, vocab.COLORS, vocab.KINDS)), rng.randint(3, 5))
    name = record.class_name + rng.choice(("Status", "Kind", "State", "Type"))
    lines = [f"class {name}(Enum):"]
    numbered = rng.random() < 0.5
    for number, word in enumerate(words, start=1):
        lines.append(f"    {word.upper()} = " + (str(number) if numbered else f'"{word}"'))
    return Item(name, "\n".join(lines), f"an enum {name} with the values {listed(words)}")


def table_item(rng: Random, record: Record) -> Item:
    numbers = record.of_type("int", "float") or ["count"]
    field = rng.choice(numbers)
    name = f"{record.noun}_{field}".upper()
    keys = rng.sample(rng.choice((vocab.THINGS, vocab.KINDS, vocab.COLORS)), rng.randint(3, 6))
    lines = [f"{name} = {{"]
    lines += [f'    "{key}": {literal(rng, field)},' for key in keys]
    lines.append("}")
    request = f"a table of the {field.replace('_', ' ')} of each {record.noun}: {listed(keys)}"
    return Item(name, "\n".join(lines), request)


def rows_item(rng: Random, record: Record) -> Item:
    name = record.plural.upper()
    fields = record.fields[:4]
    lines = [f"{name} = ["]
    for _ in range(rng.randint(2, 4)):
        cells = ", ".join(f'"{field}": {literal(rng, field)}' for field in fields)
        lines.append(f"    {{{cells}}},")
    lines.append("]")
    return Item(name, "\n".join(lines), f"a list of {record.plural} with {listed(fields)}")


def aggregate_item(rng: Random, record: Record) -> Item:
    field = rng.choice(record.of_type("int", "float") or ["count"])
    many, one = record.plural, record.noun
    kind = rng.choice(("total", "average", "highest", "lowest"))
    name = f"{kind}_{field}"
    spoken = field.replace("_", " ")
    head = [f"def {name}({many}):", f'    """Return the {kind} {spoken} of the {many}."""']
    values = f"{one}.{field} for {one} in {many}"
    if kind == "total" and rng.random() < 0.5:
        body = ["    total = 0", f"    for {one} in {many}:", f"        total += {one}.{field}"]
        body.append("    return total")
    elif kind == "total":
        body = [f"    return sum({values})"]
    elif kind == "average":
        body = [f"    if not {many}:", "        return 0.0"]
        body.append(f"    return sum({values}) / len({many})")
    else:
        body = [f"    return {'max' if kind == 'highest' else 'min'}({values})"]
    request = f"a function that returns the {kind} {spoken} of a list of {many}"
    return Item(name, "\n".join(head + body), request)


def filter_item(rng: Random, record: Record) -> Item:
    field = rng.choice(record.fields)
    many, one, spoken = record.plural, record.noun, field.replace("_", " ")
    if vocab.annotation(field) in ("int", "float"):
        word, sign = rng.choice((("above", ">"), ("below", "<"), ("at_least", ">=")))
        name, parameter = f"{many}_{word}_{field}", field
        test, phrase = f"{one}.{field} {sign} {field}", f"{word.replace('_', ' ')} a given {spoken}"
    elif vocab.annotation(field) == "bool":
        name, parameter = f"{field}_{many}", ""
        test, phrase = f"{one}.{field}", f"that are {spoken}"
    else:
        name, parameter = f"{rng.choice(('find', 'filter', 'select'))}_by_{field}", field
        test, phrase = f"{one}.{field} == {field}", f"with the given {spoken}"
    signature = ", ".join(part for part in (many, parameter) if part)
    lines = [f"def {name}({signature}):", f'    """Return the {many} {phrase}."""']
    if rng.random() < 0.6:
        lines.append(f"    return [{one} for {one} in {many} if {test}]")
    else:
        lines += ["    result = []", f"    for {one} in {many}:", f"        if {test}:"]
        lines += [f"            result.append({one})", "    return result"]
    return Item(name, "\n".join(lines), f"a function that returns the {many} {phrase}")


def group_item(rng: Random, record: Record) -> Item:
    field = rng.choice(record.fields)
    many, one, spoken = record.plural, record.noun, field.replace("_", " ")
    if rng.random() < 0.5:
        name = f"group_{many}_by_{field}"
        lines = [f"def {name}({many}):", f'    """Group the {many} by their {spoken}."""']
        lines += ["    groups = {}", f"    for {one} in {many}:"]
        lines += [
            f"        groups.setdefault({one}.{field}, []).append({one})",
            "    return groups",
        ]
        return Item(name, "\n".join(lines), f"a function that groups {many} by {spoken}")
    name = f"count_{many}_by_{field}"
    lines = [f"def {name}({many}):", f'    """Count the {many} of each {spoken}."""']
    lines += ["    counts = {}", f"    for {one} in {many}:"]
    lines.append(f"        counts[{one}.{field}] = counts.get({one}.{field}, 0) + 1")
    lines.append("    return counts")
    return Item(name, "\n".join(lines), f"a function that counts {many} by {spoken}")


def sort_item(rng: Random, record: Record) -> Item:
    field = rng.choice(record.fields)
    many, one, spoken = record.plural, record.noun, field.replace("_", " ")
    reverse = ", reverse=True" if rng.random() < 0.4 else ""
    order = "descending" if reverse else "ascending"
    name = f"sort_by_{field}"
    lines = [f"def {name}({many}):", f'    """Sort the {many} by {spoken}, {order}."""']
    lines.append(f"    return sorted({many}, key=lambda {one}: {one}.{field}{reverse})")
    request = f"a function that sorts {many} by {spoken} in {order} order"
    return Item(name, "\n".join(lines), request)


def parse_item(rng: Random, record: Record) -> Item:
    separator = rng.choice((",", ";", ":", "|"))
    fields = record.fields[:5]
    name = f"parse_{record.noun}"
    spelled = {",": "comma", ";": "semicolon", ":": "colon", "|": "bar"}[separator]
    lines = [f"def {name}(line):", f'    """Parse {article(record.noun)} from one line."""']
    lines.append(f'    parts = line.strip().split("{separator}")')
    lines += [f"    if len(parts) != {len(fields)}:"]
    lines.append(f'        raise ValueError(f"bad {record.noun}: {{line!r}}")')
    lines.append(
        f"    {', '.join(fields)} = parts" if len(fields) > 1 else f"    {fields[0]} = parts[0]"
    )
    casts = {
        "int": "int({})",
        "float": "float({})",
        "bool": '{} == "yes"',
        "list[str]": "{}.split()",
    }
    cells = [casts.get(vocab.annotation(f), "{}.strip()").format(f) for f in fields]
    if rng.random() < 0.5:
        lines.append(f"    return {record.class_name}({', '.join(cells)})")
    else:
        lines.append("    return {")
        lines += [f'        "{f}": {cell},' for f, cell in zip(fields, cells, strict=True)]
        lines.append("    }")
    request = f"a function that parses {article(record.noun)} with {listed(fields)}"
    return Item(name, "\n".join(lines), f"{request} from a {spelled} separated line")


def format_item(rng: Random, record: Record) -> Item:
    fields = rng.sample(record.fields, min(len(record.fields), rng.randint(2, 3)))
    one = record.noun
    name = rng.choice(("format", "print", "show")) + f"_{one}"
    text = rng.choice((" - ", ", ", " / ", " | ")).join(f"{{{one}.{field}}}" for field in fields)
    lines = [f"def {name}({one}):"]
    lines.append(
        f'    """{name.split("_")[0].capitalize()} the {listed(fields)} of {article(one)}."""'
    )
    if name.startswith("format"):
        lines.append(f'    return f"{text}"')
    else:
        lines.append(f'    print(f"{text}")')
    verb = name.split("_")[0]
    request = f"a function that {verb}s the {listed(fields)} of {article(one)}"
    return Item(name, "\n".join(lines), request)


def validate_item(rng: Random, record: Record) -> Item:
    fields = rng.sample(record.fields, min(len(record.fields), rng.randint(2, 3)))
    one, name = record.noun, f"{rng.choice(('validate', 'check'))}_{record.noun}"
    lines = [f"def {name}({one}):", f'    """Raise ValueError if the {one} is not valid."""']
    for field in fields:
        spoken = field.replace("_", " ")
        if vocab.annotation(field) in ("int", "float"):
            lines.append(f"    if {one}.{field} < 0:")
            lines.append(f'        raise ValueError("{spoken} must not be negative")')
        else:
            lines.append(f"    if not {one}.{field}:")
            lines.append(f'        raise ValueError("{spoken} is missing")')
    if rng.random() < 0.4:
        lines.append(f"    return {one}")
    request = f"a function that checks the {listed(fields)} of {article(one)}"
    return Item(name, "\n".join(lines), request)


def collection_item(rng: Random, record: Record) -> Item:
    name = record.class_name + vocab.camel(rng.choice(vocab.COLLECTIONS))
    many, one, key = record.plural, record.noun, record.fields[0]
    keyed = rng.random() < 0.5
    lines = [f"class {name}:", f'    """Keeps {many}{f" by {key}" if keyed else ""}."""', ""]
    lines += ["    def __init__(self):", f"        self.{many} = {'{}' if keyed else '[]'}", ""]
    lines += [f"    def add(self, {one}):"]
    lines.append(
        f"        self.{many}[{one}.{key}] = {one}"
        if keyed
        else f"        self.{many}.append({one})"
    )
    methods: list[list[str]] = [
        ["    def __len__(self):", f"        return len(self.{many})"],
        ["    def clear(self):", f"        self.{many}.clear()"],
    ]
    if keyed:
        methods.append([f"    def get(self, {key}):", f"        return self.{many}.get({key})"])
        methods.append([f"    def remove(self, {key}):", f"        del self.{many}[{key}]"])
        methods.append(["    def __iter__(self):", f"        return iter(self.{many}.values())"])
    else:
        methods.append([f"    def remove(self, {one}):", f"        self.{many}.remove({one})"])
        methods.append(["    def __iter__(self):", f"        return iter(self.{many})"])
    for method in rng.sample(methods, rng.randint(2, 4)):
        lines += ["", *method]
    how = f" by {key.replace('_', ' ')}" if keyed else ""
    return Item(name, "\n".join(lines), f"a class {name} that keeps {many}{how}")


RECORD_WRITERS: tuple[Callable[[Random, Record], Item], ...] = (
    dataclass_item,
    dataclass_item,
    plain_class_item,
    plain_class_item,
    named_tuple_item,
    enum_item,
    table_item,
    rows_item,
    aggregate_item,
    filter_item,
    group_item,
    sort_item,
    parse_item,
    format_item,
    validate_item,
    collection_item,
)
