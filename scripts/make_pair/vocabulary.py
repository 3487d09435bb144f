"""The words from which the procedural Python corpus is made.

Entities carry the fields a reader would expect of them, so that a small model can learn which
names go together, and a shared pool of further fields keeps any two records from being the same.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ENTITIES: dict[str, str] = {
    "book": "title author year pages isbn genre publisher language",
    "movie": "title director year duration rating genre studio",
    "song": "title artist album duration genre year",
    "album": "title artist year label tracks",
    "recipe": "name servings minutes ingredients steps calories",
    "order": "number customer items total status created",
    "invoice": "number customer amount currency due_date paid",
    "customer": "name email phone address city active",
    "employee": "name email salary department manager start_date",
    "student": "name age grade school courses average",
    "course": "title teacher credits room capacity",
    "teacher": "name subject school email room",
    "product": "name price quantity category weight sku",
    "vehicle": "make model year color mileage plate",
    "flight": "number origin destination departure gate seats",
    "ticket": "number event seat price owner used",
    "event": "name date place capacity organizer price",
    "city": "name country population area mayor latitude longitude",
    "country": "name capital population area currency continent",
    "river": "name length source mouth depth",
    "mountain": "name height range country first_ascent",
    "planet": "name radius mass moons distance temperature",
    "star": "name magnitude distance color temperature",
    "animal": "name species age weight legs habitat",
    "bird": "name species wingspan color habitat",
    "plant": "name species height color season water",
    "garden": "name owner area plants city",
    "house": "address rooms area price owner year",
    "room": "name floor area windows capacity",
    "sensor": "name unit value minimum maximum enabled",
    "device": "name serial firmware battery enabled address",
    "printer": "name model color pages address",
    "server": "host port region cpu memory online",
    "job": "name command priority status attempts timeout",
    "task": "title description priority done due_date owner",
    "project": "name owner budget deadline tasks status",
    "message": "sender recipient subject body sent read",
    "comment": "author text created likes hidden",
    "article": "title author body tags published views",
    "user": "name email password age active role",
    "account": "number owner balance currency frozen",
    "payment": "amount currency method reference confirmed",
    "loan": "amount rate months borrower approved",
    "team": "name city coach players wins losses",
    "player": "name age team position goals height",
    "match": "home away date score stadium",
    "point": "x y label weight",
    "circle": "radius x y color",
    "image": "path width height format size",
    "file": "path size owner modified hidden",
    "package": "name version author license size",
    "hotel": "name city stars rooms price",
    "train": "number origin destination speed wagons",
    "ship": "name flag tonnage length captain",
    "museum": "name city founded visitors director",
    "painting": "title painter year width height museum",
    "doctor": "name specialty hospital email phone",
    "patient": "name age weight blood_type doctor",
    "meal": "name calories protein price vegetarian",
    "coffee": "name origin roast price strength",
}

EXTRA_FIELDS = _words(
    "code notes level source owner group index label version count score kind zone batch "
    "comment priority updated archived region unit rank token shape origin limit offset"
)

INT_FIELDS = frozenset(
    _words(
        "year pages duration tracks servings minutes calories quantity age credits capacity seats "
        "population moons legs rooms floor windows port cpu memory attempts timeout priority likes "
        "views months wins losses goals mileage stars wagons visitors founded width height_px size "
        "level index count rank limit offset tonnage speed strength battery"
    )
)
FLOAT_FIELDS = frozenset(
    _words(
        "rating price weight total amount salary average area latitude longitude length depth "
        "height radius mass distance temperature magnitude wingspan value minimum maximum balance "
        "rate budget score x y protein water"
    )
)
BOOL_FIELDS = frozenset(
    _words(
        "active used paid enabled online done read sent hidden frozen confirmed approved published "
        "vegetarian archived"
    )
)
LIST_FIELDS = frozenset(_words("ingredients steps items courses tasks tags players plants"))

PEOPLE = _words(
    "Ada Alan Grace Linus Maria Nina Omar Paula Quinn Rosa Samuel Tara Umar Vera Walter Xenia "
    "Yusuf Zoe Bruno Carla Diego Elena Felix Greta Hugo Irene Jonas Karin Leo Mina"
)
PLACES = _words(
    "Lisbon Oslo Vienna Prague Dublin Athens Madrid Geneva Cairo Nairobi Lima Quito Havana Toronto "
    "Boston Denver Kyoto Osaka Seoul Hanoi Delhi Sydney Perth Auckland Riga Tallinn Turin Lyon"
)
COLORS = _words("red green blue yellow orange purple brown black white grey pink violet")
THINGS = _words(
    "apple bridge candle desk engine forest glove hammer island jacket kettle lamp mirror needle "
    "ocean pencil quartz ribbon saddle table umbrella valley window yarn basket copper feather"
)
STATES = _words(
    "new open active ready running waiting paused blocked failed done closed cancelled expired "
    "pending approved rejected shipped delivered returned draft"
)
KINDS = _words(
    "small medium large light heavy fast slow public private local remote daily weekly monthly "
    "first second third basic standard premium winter spring summer autumn north south east west"
)
UNITS: tuple[tuple[str, str, str], ...] = (
    ("celsius", "fahrenheit", "{0} * 9 / 5 + 32"),
    ("fahrenheit", "celsius", "({0} - 32) * 5 / 9"),
    ("kilometers", "miles", "{0} * 0.621371"),
    ("miles", "kilometers", "{0} / 0.621371"),
    ("meters", "feet", "{0} * 3.28084"),
    ("kilograms", "pounds", "{0} * 2.20462"),
    ("pounds", "kilograms", "{0} / 2.20462"),
    ("liters", "gallons", "{0} * 0.264172"),
    ("hours", "minutes", "{0} * 60"),
    ("minutes", "seconds", "{0} * 60"),
    ("days", "hours", "{0} * 24"),
    ("weeks", "days", "{0} * 7"),
    ("degrees", "radians", "{0} * 3.14159 / 180"),
    ("bytes", "kilobytes", "{0} / 1024"),
    ("kilobytes", "megabytes", "{0} / 1024"),
    ("inches", "centimeters", "{0} * 2.54"),
)
COLLECTIONS = _words(
    "registry catalog inventory library archive store shelf collection directory ledger queue pool"
)

IRREGULAR_PLURALS = {
    "city": "cities",
    "country": "countries",
    "match": "matches",
    "box": "boxes",
    "library": "libraries",
    "registry": "registries",
}


def plural(noun: str) -> str:
    return IRREGULAR_PLURALS.get(noun, noun + "s")


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def annotation(field: str) -> str:
    """The type a generated record gives to ``field``."""
    if field in INT_FIELDS:
        return "int"
    if field in FLOAT_FIELDS:
        return "float"
    if field in BOOL_FIELDS:
        return "bool"
    if field in LIST_FIELDS:
        return "list[str]"
    return "str"
