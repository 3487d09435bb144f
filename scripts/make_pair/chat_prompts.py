"""Chat prompts for a small general model, free to use: written here, combined by a seed.

    python scripts/make_pair/chat_prompts.py FOLDER [--count 12000]

Writes ``train.jsonl`` and ``held-out.jsonl``. No topic of a held-out prompt occurs in training.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from random import Random

HELD_OUT_SHARE = 12
HELD_OUT = 80


def _words(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(",") if part.strip())


THINGS = _words(
    """
    gravity, photosynthesis, volcanoes, the water cycle, electricity, magnets, black holes,
    vaccines, the heart, the brain, sleep, dreams, rainbows, earthquakes, tides, the moon, the
    sun, planets, comets, dinosaurs, fossils, evolution, bacteria, viruses, cells, DNA, atoms,
    molecules, acids, batteries, engines, airplanes, bridges, computers, the internet,
    programming, algorithms, databases, encryption, robots, machine learning, satellites,
    telescopes, microscopes, lasers, sound, light, heat, friction, pressure, energy, wind power,
    solar panels, recycling, compost, soil, forests, deserts, oceans, coral reefs, rivers,
    glaciers, the weather, climate, clouds, thunderstorms, hurricanes, money, banks, inflation,
    taxes, trade, insurance, budgets, saving, democracy, elections, constitutions, courts, human
    rights, the printing press, the compass, the Roman Empire, ancient Egypt, the Middle Ages,
    the Renaissance, the Industrial Revolution, the Silk Road, exploration, pyramids, castles,
    cathedrals, museums, painting, sculpture, poetry, theatre, novels, music, jazz, the piano,
    the violin, dance, film, photography, chess, football, tennis, swimming, running, yoga,
    cycling, hiking, camping, gardening, cooking, baking, bread, cheese, chocolate, coffee, tea,
    honey, salt, sugar, rice, potatoes, tomatoes, apples, bananas, bees, butterflies, ants,
    spiders, birds, owls, penguins, eagles, dogs, cats, horses, cows, pigs, elephants, lions,
    wolves, bears, whales, dolphins, sharks, turtles, snakes, frogs, trees, roses, mushrooms,
    seeds, calendars, clocks, maps, numbers, zero, fractions, percentages, probability,
    geometry, triangles, circles, prime numbers, algebra, statistics, logic, language, grammar,
    alphabets, translation, memory, learning, habits, friendship, kindness, honesty, courage,
    patience, stress, teamwork, leadership, negotiation, public speaking, job interviews, time
    management, note taking, studying, reading, writing, blogging, travel, trains, ships, cars,
    traffic, cities, villages, houses, windows, paper, glass, steel, plastic, wood, cotton, wool
    """
)
QUESTIONS = _words(
    """
    What is the main idea behind {0}?, Explain {0} in simple words., How does {0} affect daily
    life?, Why is {0} important?, Tell me three interesting facts about {0}., What should a
    beginner know about {0}?, Write a short paragraph about {0}., Give me a list of five tips
    about {0}., Describe the history of {0} briefly., What are common mistakes people make about
    {0}?, Explain {0} to a ten-year-old., Write a short poem about {0}., Write a dialogue
    between two friends about {0}., What questions might a student ask about {0}?, Summarize
    what is known about {0}., Compare {0} with {1}., How are {0} and {1} related?, Write a short
    story that involves {0} and {1}., Give two advantages and two disadvantages of {0}., Write
    an email to a friend about {0}., Make a lesson plan about {0}., What is a good title for an
    article about {0} and {1}?, Write a quiz with three questions about {0}., How would you
    teach {0} to adults?, What might change about {0} in the future?
    """
)
FOLLOW_UPS = _words(
    """
    Can you give an example?, Make it shorter., Explain that in more detail., Why?, And what
    about {1}?, Say it in one sentence., Turn that into a list., What else should I know?
    """
)


def is_held_out(topic: str) -> bool:
    return zlib.crc32(topic.encode()) % HELD_OUT_SHARE == 0


def prompts(count: int, seed: int, *, held_out: bool) -> list[dict[str, object]]:
    """Different chats of one turn of the user's."""
    topics = [topic for topic in THINGS if is_held_out(topic) == held_out]
    rng, found = Random(f"chat/{seed}/{held_out}"), {}
    limit = 50 * count
    for _ in range(limit):
        first, second = rng.sample(topics, 2)
        text = rng.choice(QUESTIONS).format(first, second)
        if rng.random() < 0.2:
            text += " " + rng.choice(FOLLOW_UPS).format(first, second)
        found[text] = {"messages": [{"role": "user", "content": text}]}
        if len(found) == count:
            return list(found.values())
    raise SystemExit(f"{count} prompts are more than there are combinations")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, count, held_out in (("train", args.count, False), ("held-out", HELD_OUT, True)):
        lines = [json.dumps(p) + "\n" for p in prompts(count, args.seed, held_out=held_out)]
        (args.folder / f"{name}.jsonl").write_text("".join(lines))
        print(f"{args.folder / name}.jsonl: {len(lines)} prompts")


if __name__ == "__main__":
    main()
