"""Writers of items that belong to no record: files, command lines, numbers, text, units, tests."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from . import vocabulary as vocab
from .items import Item, Record, article, literal

_SMALL_FUNCTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("clamp", "{0}, low, high", "limits a number to a range", "return max(low, min(high, {0}))"),
    ("mean", "{1}", "returns the mean of a list of numbers", "return sum({1}) / len({1})"),
    ("is_even", "{0}", "tells whether a number is even", "return {0} % 2 == 0"),
    ("is_odd", "{0}", "tells whether a number is odd", "return {0} % 2 == 1"),
    ("square", "{0}", "returns the square of a number", "return {0} * {0}"),
    ("unique", "{1}", "removes duplicates and keeps the order", "return list(dict.fromkeys({1}))"),
    (
        "first",
        "{1}, default=None",
        "returns the first item or a default",
        "return next(iter({1}), default)",
    ),
    (
        "flatten",
        "{1}",
        "flattens a list of lists",
        "return [{0} for group in {1} for {0} in group]",
    ),
    (
        "invert",
        "mapping",
        "swaps keys and values",
        "return {{value: key for key, value in mapping.items()}}",
    ),
    (
        "reverse_words",
        "text",
        "reverses the order of the words",
        'return " ".join(reversed(text.split()))',
    ),
    ("is_palindrome", "text", "tells whether a text is a palindrome", "return text == text[::-1]"),
    ("count_lines", "text", "counts the lines of a text", "return len(text.splitlines())"),
    (
        "initials",
        "text",
        "returns the initials of a name",
        'return "".join(word[0] for word in text.split())',
    ),
    ("slugify", "text", "turns a title into a slug", 'return "-".join(text.lower().split())'),
)

_LONG_FUNCTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("gcd", "a, b", "returns the greatest common divisor", "while b:|    a, b = b, a % b|return a"),
    (
        "factorial",
        "n",
        "returns the factorial of a number",
        "result = 1|for {0} in range(2, n + 1):|    result *= {0}|return result",
    ),
    (
        "fibonacci",
        "n",
        "returns the first n Fibonacci numbers",
        "{1} = []|a, b = 0, 1|for _ in range(n):|    {1}.append(a)|    a, b = b, a + b|return {1}",
    ),
    (
        "is_prime",
        "n",
        "tells whether a number is prime",
        "if n < 2:|    return False|for {0} in range(2, int(n ** 0.5) + 1):"
        "|    if n % {0} == 0:|        return False|return True",
    ),
    (
        "count_words",
        "text",
        "counts how often each word occurs",
        "counts = {{}}|for word in text.lower().split():"
        "|    counts[word] = counts.get(word, 0) + 1|return counts",
    ),
    (
        "chunks",
        "{1}, size",
        "splits a list into chunks of a size",
        "for start in range(0, len({1}), size):|    yield {1}[start:start + size]",
    ),
    (
        "index_of_largest",
        "{1}",
        "returns the index of the largest number",
        "best = 0|for index, {0} in enumerate({1}):|    if {0} > {1}[best]:"
        "|        best = index|return best",
    ),
    (
        "binary_search",
        "{1}, wanted",
        "finds a number in a sorted list",
        "low, high = 0, len({1}) - 1|while low <= high:|    middle = (low + high) // 2"
        "|    if {1}[middle] == wanted:|        return middle|    if {1}[middle] < wanted:"
        "|        low = middle + 1|    else:|        high = middle - 1|return -1",
    ),
    (
        "running_total",
        "{1}",
        "returns the running total of a list",
        "total = 0|totals = []|for {0} in {1}:|    total += {0}"
        "|    totals.append(total)|return totals",
    ),
    (
        "count_vowels",
        "text",
        "counts the vowels of a text",
        'count = 0|for letter in text.lower():|    if letter in "aeiou":'
        "|        count += 1|return count",
    ),
)


def function_item(rng: Random, record: Record) -> Item:
    """A small function on numbers or text, with varied names for its variables."""
    pool = rng.choice((_SMALL_FUNCTIONS, _LONG_FUNCTIONS))
    name, parameters, purpose, body = rng.choice(pool)
    one, many = rng.choice(
        (("number", "numbers"), ("value", "values"), ("item", "items"), ("x", "xs"))
    )
    lines = [f"def {name}({parameters.format(one, many)}):"]
    if rng.random() < 0.7:
        verb, rest = purpose.split(" ", 1)
        lines.append(f'    """{verb.capitalize()} {rest}."""')
    lines += ["    " + line for line in body.format(one, many).split("|")]
    return Item(name, "\n".join(lines), f"a function {name} that {purpose}")


def unit_item(rng: Random, record: Record) -> Item:
    source, target, formula = rng.choice(vocab.UNITS)
    parameter = rng.choice((source, "value", "amount"))
    name = f"{source}_to_{target}"
    lines = [f"def {name}({parameter}):"]
    if rng.random() < 0.7:
        lines.append(f'    """Convert {source} to {target}."""')
    lines.append(f"    return {formula.format(parameter)}")
    return Item(name, "\n".join(lines), f"a function that converts {source} to {target}")


def file_item(rng: Random, record: Record) -> Item:
    many, one = record.plural, record.noun
    style = rng.choice(("json_load", "json_save", "csv", "lines"))
    if style == "json_load":
        name = f"{rng.choice(('load', 'read'))}_{many}"
        lines = [f"def {name}(path):", f'    """Read the {many} from a JSON file."""']
        lines += [
            '    with open(path, encoding="utf-8") as file:',
            "        data = json.load(file)",
        ]
        lines.append(f"    return [{record.class_name}(**row) for row in data]")
        return Item(name, "\n".join(lines), f"a function that reads {many} from a JSON file")
    if style == "json_save":
        name = f"{rng.choice(('save', 'write'))}_{many}"
        lines = [f"def {name}({many}, path):", f'    """Write the {many} to a JSON file."""']
        lines.append(f"    rows = [vars({one}) for {one} in {many}]")
        lines.append('    with open(path, "w", encoding="utf-8") as file:')
        lines.append("        json.dump(rows, file, indent=2)")
        return Item(name, "\n".join(lines), f"a function that writes {many} to a JSON file")
    if style == "csv":
        name = f"import_{many}"
        lines = [f"def {name}(path):", f'    """Read the {many} from a CSV file."""']
        lines += [
            '    with open(path, newline="") as file:',
            "        reader = csv.DictReader(file)",
        ]
        lines.append("        return list(reader)")
        return Item(name, "\n".join(lines), f"a function that reads {many} from a CSV file")
    name = f"read_{one}_lines"
    lines = [
        f"def {name}(path):",
        f'    """Return the lines of {article(one)} file."""',
        "    lines = []",
    ]
    lines += [
        "    with open(path) as file:",
        "        for line in file:",
        "            line = line.strip()",
    ]
    lines += ["            if line:", "                lines.append(line)", "    return lines"]
    return Item(name, "\n".join(lines), f"a function that reads the lines of {article(one)} file")


def main_item(rng: Random, record: Record) -> Item:
    many = record.plural
    options = rng.sample(
        ("verbose", "output", "limit", "sort", "format", "reverse"), rng.randint(1, 3)
    )
    lines = ["def main():"]
    lines.append(f'    parser = argparse.ArgumentParser(description="List the {many}.")')
    lines.append(f'    parser.add_argument("path", help="file with the {many}")')
    for option in options:
        if option in ("verbose", "reverse"):
            extra = ', action="store_true"'
        elif option == "limit":
            extra = f", type=int, default={rng.choice((5, 10, 20, 50, 100))}"
        else:
            extra = f', default="{rng.choice(vocab.THINGS)}"'
        lines.append(f'    parser.add_argument("--{option}"{extra})')
    lines.append("    args = parser.parse_args()")
    verb = rng.choice(("load", "read"))
    lines += [f"    {many} = {verb}_{many}(args.path)", f"    for {record.noun} in {many}:"]
    lines.append(f"        print({record.noun})")
    return Item("main", "\n".join(lines), f"a main function that lists the {many} of a file")


def sample_item(rng: Random, record: Record) -> Item:
    name = f"{rng.choice(('make', 'create', 'build'))}_{record.noun}"
    lines = [f"def {name}():", f'    """Return a sample {record.noun}."""']
    lines.append(f"    return {record.class_name}(")
    lines += [f"        {field}={literal(rng, field)}," for field in record.fields]
    lines.append("    )")
    return Item(name, "\n".join(lines), f"a function that makes a sample {record.noun}")


def check_item(rng: Random, record: Record) -> Item:
    field = rng.choice(record.fields)
    value = literal(rng, field)
    name = f"test_{record.noun}_{field}"
    one = record.noun
    lines = [f"def {name}():"]
    if rng.random() < 0.5:
        lines += [f"    {one} = make_{one}()", f"    {one}.{field} = {value}"]
    else:
        lines.append(f"    {one} = {record.class_name}({field}={value})")
    lines.append(f"    assert {one}.{field} == {value}")
    request = f"a test for the {field.replace('_', ' ')} of {article(one)}"
    return Item(name, "\n".join(lines), request)


HELPER_WRITERS: tuple[Callable[[Random, Record], Item], ...] = (
    function_item,
    function_item,
    function_item,
    unit_item,
    file_item,
    main_item,
    sample_item,
    check_item,
)
