"""All of SGLang that making a drafter needs; nothing else in ``drafter/`` imports it."""
