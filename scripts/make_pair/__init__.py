"""Makes a bundled pair of tiny models from nothing: corpus, tokenizer, target, drafter, prompts.

    python scripts/make_pair tiny-dense --work DIR [--stage STAGE]

Run without ``--stage`` it goes through all stages in order and resumes whatever ``DIR`` holds.
"""
