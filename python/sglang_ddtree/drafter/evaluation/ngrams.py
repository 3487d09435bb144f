"""What n-grams say of a text: how much it repeats, and what prompt look-up would make of it."""

from __future__ import annotations

from collections.abc import Sequence


def repeated_share(tokens: Sequence[int], size: int = 8) -> float:
    """Share of the n-grams of ``tokens`` that occurred in it before; 0 where there is none."""
    grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


class PromptLookup:
    """Drafting by copying: what followed the latest earlier match of the longest known suffix.

    Args:
        tokens: prompt, then the text that the target wrote.
        longest: suffixes of this many tokens, and shorter ones where it has no match.
    """

    def __init__(self, tokens: Sequence[int], longest: int = 3) -> None:
        self.tokens = list(tokens)
        self.longest = longest

    def draft(self, end: int, length: int) -> list[int]:
        """At most ``length`` tokens to follow ``tokens[:end]``, of which nothing else is known."""
        for size in range(min(self.longest, end - 1), 0, -1):
            suffix = self.tokens[end - size : end]
            for start in range(end - size - 1, -1, -1):
                if self.tokens[start : start + size] == suffix:
                    return self.tokens[start + size : min(start + size + length, end)]
        return []

    def steps(self, start: int, length: int) -> int:
        """Decode steps to write ``tokens[start + 1 :]`` by drafting ``length`` tokens each.

        ``tokens[start]`` comes from the prefill. A step outputs the drafted tokens up to the first
        that differs from the text, and one more; the last step is cut at the end of the text.
        """
        end, steps = start + 1, 0
        while end < len(self.tokens):
            for guess in self.draft(end, length):
                if end + 1 >= len(self.tokens) or guess != self.tokens[end]:
                    break
                end += 1
            end += 1
            steps += 1
        return steps
